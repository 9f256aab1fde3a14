// trireme-evaluate: scores a checkpoint on a split of the deck's data or on a text.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/folder.hpp"
#include "core/clock.hpp"
#include "core/files.hpp"
#include "core/text.hpp"
#include "deck_options.hpp"
#include "evaluate/detokenize.hpp"
#include "evaluate/ngram.hpp"
#include "evaluate/text_datasets.hpp"
#include "model/layers/head.hpp"
#include "model/spec.hpp"
#include "mpi_app.hpp"
#include "report/metrics.hpp"
#include "train/non_finite.hpp"
#include "train/stage_runner.hpp"
#include "train/startup/datasets.hpp"
#include "train/startup/devices.hpp"
#include "train/startup/restart.hpp"
#include "train/startup/startup.hpp"

namespace trireme {
namespace {

constexpr const char* kProgram = "trireme-evaluate";
constexpr const char* kUsage =
    "Usage: trireme-evaluate DECK [KEY=VALUE ...] [options]\n"
    "Scores a checkpoint on a split of the deck's data or on a file, on any number of ranks.\n\n"
    "Tasks:\n"
    "  perplexity  loss per token of the split, or of the text in --input\n"
    "  wikitext    word-level perplexity of --input, the raw test file of WikiText-103 or PTB\n"
    "  lambada     accuracy of the last word of each text in --input\n"
    "  ngram       n-gram baselines of the split, which need no checkpoint\n\n";

po::options_description all_options() {
  po::options_description options = deck_options();
  options.add_options()  //
      ("checkpoint", po::value<std::string>()->value_name("PATH"),
       "a checkpoint or a run folder; default: the newest checkpoint of the deck's run")  //
      ("task", po::value<std::string>()->default_value("perplexity")->value_name("TASK"),
       "perplexity, wikitext, lambada or ngram")  //
      ("split", po::value<std::string>()->default_value("valid")->value_name("SPLIT"),
       "train, valid or test")  //
      ("input", po::value<std::string>()->value_name("FILE"),
       "text to score instead of a split: JSON lines with a \"text\"; a *.txt is one document; "
       "wikitext: plain text")  //
      ("overlapping-eval", po::value<std::int64_t>()->default_value(32)->value_name("N"),
       "wikitext: tokens from one window to the next; model.sequence: no overlap")    //
      ("strict-lambada", "lambada: all tokens of the last word, not the last token")  //
      ("quiet", po::bool_switch(), "no progress meter")                               //
      ("json", "print one JSON object");
  return options;
}

/// The deck's tensor and pipeline ranks where they divide the ranks there are, else data ranks
/// only: no layout changes the score of a sample. The batch is one micro-batch a copy, and what
/// depends on the training batches is left out.
void resolve_layout(deck::Deck& deck, std::int64_t ranks) {
  if (ranks % (deck.parallel.tensor * deck.parallel.pipeline) != 0) {
    deck.parallel.tensor = deck.parallel.pipeline = 1;
    deck.parallel.partition.reset();
  }
  // Forward passes alone keep nothing to recompute, and gain nothing from a schedule.
  deck.recompute = {};
  deck.parallel.schedule = deck::PipelineSchedule::one_f_one_b;
  deck.parallel.interleave = 1;
  deck.parallel.data = ranks / (deck.parallel.tensor * deck.parallel.pipeline);
  // The head keeps the logits of a whole micro-batch, which lambada reads.
  deck.batch.micro =
      std::min(deck.batch.micro,
               std::max<std::int64_t>(model::Head::kMaxLossTokens / deck.model.sequence, 1));
  deck.batch.global = deck.batch.micro * *deck.parallel.data;
  deck.batch.rampup = {};
  deck.train.skip.clear();
}

void print_result(const po::variables_map& values, const nlohmann::ordered_json& result) {
  if (values.count("json")) return print_out(result.dump() + "\n");
  std::string text;
  for (const auto& [key, value] : result.items())
    text +=
        fmt::format("{:<20}{}\n", key, value.is_string() ? value.get<std::string>() : value.dump());
  print_out(text);
}

/// Loads the weights of the checkpoint at `path`, rounded to the type of `parameters`. Collective.
checkpoint::Header load_weights(const std::string& path, comm::Groups& groups,
                                device::Backend& backend, model::ParameterStore& parameters) {
  const auto load_into = [&](const model::ParameterStore& store) {
    const checkpoint::Header header = checkpoint::load(
        path, *groups.world, checkpoint::weight_tensors(store, groups.place.data == 0), &backend);
    const std::string problem = train::find_non_finite(*groups.world, backend, store);
    if (!problem.empty())
      throw train::CollectiveError(
          ExitCode::diverged,
          fmt::format("'{}' has weights that are not finite: {}", path, problem));
    return header;
  };
  const Precision& precision = parameters.precision();
  if (precision.weights == precision.master) return load_into(parameters);
  const model::ParameterStore exact(backend, parameters.table(), groups.layout, groups.place,
                                    mixed_precision(precision.master));
  const checkpoint::Header header = load_into(exact);
  backend.cast({.x = exact.weights(), .out = parameters.weights()});
  backend.synchronize();
  return header;
}

/// A checkpoint's loss on a dataset.
struct Score {
  std::string checkpoint;
  std::int64_t iteration = 0;
  train::LossSum sum;
};

/// Scores `dataset`, called `what` in messages, with the checkpoint that the command line names.
/// With `cloze`, the most likely tokens go there. Collective.
Score score(const DeckArguments& arguments, const train::PreparedDeck& prepared,
            const data::Dataset& dataset, const std::string& what,
            std::unique_ptr<comm::MpiCommunicator> world, evaluate::ClozeScores* cloze = nullptr) {
  const auto& [deck, vocabulary] = prepared;
  const std::string path = train::on_rank_zero(*world, [&] {
    const auto& values = arguments.values;
    const auto found = checkpoint::locate(
        values.count("checkpoint") ? values["checkpoint"].as<std::string>() : deck.run.output);
    if (!found.note.empty())
      std::fputs(fmt::format("{}: {}\n", kProgram, found.note).c_str(), stderr);
    train::require_same_model(deck, found.path);
    return found.path.string();
  });
  train::Devices devices = train::make_devices(deck, std::move(world));
  comm::Groups& groups = devices.groups;
  const model::StageConfig config = plan::stage_config(deck, vocabulary);
  devices.backend->reserve_workspace(model::kernel_workspace_bytes(config));
  model::ParameterStore parameters(*devices.backend, model::declare_parameters(config.spec),
                                   groups.layout, groups.place, config.precision);
  const checkpoint::Header header = load_weights(path, groups, *devices.backend, parameters);

  const int slots = groups.layout.pipeline > 1 ? 2 : 1;  // one is computed while the other is sent
  train::StageRunner runner(groups, *devices.backend, config, parameters, slots);
  const bool meter = groups.world->rank() == 0 && !arguments.values["quiet"].as<bool>();
  Progress progress("evaluating", "sample", static_cast<double>(dataset.samples()),
                    meter ? stderr : nullptr);
  if (cloze)
    runner.observe_logits([cloze](const auto& batch, std::int64_t first, const auto& logits) {
      cloze->add(batch, first, logits);
    });
  const train::LossSum sum = runner.evaluate_all(
      dataset, [&](std::int64_t done) { progress.update(static_cast<double>(done)); });
  if (cloze)
    cloze->combine([&](double* values, std::size_t count) {
      groups.world->all_reduce(values, count, DType::f64, comm::Reduce::max);
    });
  if (sum.tokens == 0.0)
    throw train::CollectiveError(ExitCode::data, fmt::format("{} has no token to score", what));
  if (!std::isfinite(sum.mean()))
    throw train::CollectiveError(
        ExitCode::diverged,
        fmt::format("the loss of '{}' on {} is not finite: the model has diverged", path, what));
  return {path, header.get<std::int64_t>("iteration"), sum};
}

nlohmann::ordered_json score_split(const DeckArguments& arguments,
                                   const train::PreparedDeck& prepared, data::Split split,
                                   std::unique_ptr<comm::MpiCommunicator> world) {
  const auto dataset =
      train::open_dataset(prepared.deck, prepared.vocabulary, split, std::nullopt, *world);
  const Score found = score(arguments, prepared, *dataset,
                            fmt::format("the {} split", name_of(split)), std::move(world));
  return {{"task", "perplexity"},
          {"split", data::name_of(split)},
          {"checkpoint", found.checkpoint},
          {"iteration", found.iteration},
          {"loss", found.sum.mean()},
          {"perplexity", report::perplexity(found.sum.mean())},
          {"tokens", static_cast<std::int64_t>(found.sum.tokens)}};
}

/// The tokenizer of the deck, which texts need.
std::unique_ptr<tokenizer::Tokenizer> text_tokenizer(const deck::Deck& deck) {
  const auto spec = plan::tokenizer_spec(deck);
  if (!spec) throw DeckError("--input needs data.tokenizer, which turns its text into token ids");
  return tokenizer::make_tokenizer(*spec);
}

nlohmann::ordered_json score_text(const DeckArguments& arguments,
                                  const train::PreparedDeck& prepared, const std::string& task,
                                  const std::string& input,
                                  std::unique_ptr<comm::MpiCommunicator> world) {
  const std::int64_t sequence = prepared.deck.model.sequence;
  std::optional<evaluate::WindowDataset> windows;
  std::int64_t words = 0;
  train::throw_collectively([&] {
    const auto tokenizer = text_tokenizer(prepared.deck);
    const std::int32_t padding = tokenizer->eod().value_or(0);
    if (task == "perplexity") {
      windows.emplace(evaluate::read_documents(input, *tokenizer), sequence, sequence, padding);
      return;
    }
    const std::string text = read_file(input);
    words = evaluate::count_words(text);
    windows.emplace(tokenizer->encode(evaluate::detokenize(text, input)), sequence,
                    arguments.values["overlapping-eval"].as<std::int64_t>(), padding);
  });
  const Score found =
      score(arguments, prepared, *windows, fmt::format("'{}'", input), std::move(world));
  nlohmann::ordered_json result{{"task", task},
                                {"input", input},
                                {"checkpoint", found.checkpoint},
                                {"iteration", found.iteration},
                                {"loss", found.sum.mean()},
                                {"perplexity", report::perplexity(found.sum.mean())}};
  if (task == "wikitext") {
    const double ratio =
        found.sum.tokens / static_cast<double>(std::max<std::int64_t>(words - 1, 1));
    result["adjusted_perplexity"] = report::perplexity(found.sum.mean() * ratio);
    result["token_ratio"] = ratio;
    result["words"] = words;
  }
  result["tokens"] = static_cast<std::int64_t>(found.sum.tokens);
  return result;
}

nlohmann::ordered_json lambada(const DeckArguments& arguments, const train::PreparedDeck& prepared,
                               const std::string& input,
                               std::unique_ptr<comm::MpiCommunicator> world) {
  const bool strict = arguments.values.count("strict-lambada") > 0;
  std::optional<evaluate::ClozeDataset> items;
  train::throw_collectively([&] {
    const auto tokenizer = text_tokenizer(prepared.deck);
    items.emplace(evaluate::read_lambada(input, *tokenizer, strict), prepared.deck.model.sequence,
                  tokenizer->eod().value_or(0));
  });
  evaluate::ClozeScores scores(*items);
  const Score found =
      score(arguments, prepared, *items, fmt::format("'{}'", input), std::move(world), &scores);
  const std::int64_t correct = scores.correct();
  return {{"task", "lambada"},
          {"input", input},
          {"strict", strict},
          {"checkpoint", found.checkpoint},
          {"iteration", found.iteration},
          {"accuracy", static_cast<double>(correct) / static_cast<double>(items->samples())},
          {"correct", correct},
          {"examples", items->samples()},
          {"loss", found.sum.mean()},
          {"tokens", static_cast<std::int64_t>(found.sum.tokens)}};
}

nlohmann::ordered_json ngram(const train::PreparedDeck& prepared, data::Split split,
                             comm::MpiCommunicator& world) {
  const auto& [deck, vocabulary] = prepared;
  const auto open = [&](data::Split which) {
    return train::open_dataset(deck, vocabulary, which, std::nullopt, world);
  };
  const auto train = open(data::Split::train), held_out = open(split);
  const evaluate::NgramLoss loss = evaluate::ngram_loss(*train, *held_out, vocabulary.size);
  return {{"task", "ngram"},
          {"split", data::name_of(split)},
          {"unigram", loss.unigram},
          {"bigram", loss.bigram},
          {"tokens", loss.tokens}};
}

/// The task; throws UsageError for options that do not belong to it.
std::string parse_task(const po::variables_map& values) {
  const std::string task = values["task"].as<std::string>();
  const bool text = task == "wikitext" || task == "lambada", input = values.count("input") > 0;
  if (!text && task != "perplexity" && task != "ngram")
    throw UsageError("--task {}: expected perplexity, wikitext, lambada or ngram", task);
  if (text && !input) throw UsageError("--task {} needs --input, the file to score", task);
  if (task == "ngram" && (input || values.count("checkpoint")))
    throw UsageError("--task ngram counts the training data and takes no --{}",
                     input ? "input" : "checkpoint");
  if (input && !values["split"].defaulted())
    throw UsageError("--input and --split: give one of them");
  if (task != "wikitext" && !values["overlapping-eval"].defaulted())
    throw UsageError("--overlapping-eval belongs to --task wikitext");
  if (task != "lambada" && values.count("strict-lambada"))
    throw UsageError("--strict-lambada belongs to --task lambada");
  return task;
}

ExitCode run(int argc, char** argv) {
  const po::options_description options = all_options();
  if (answers_deck_help(argc, argv, kProgram, kUsage, options)) return ExitCode::success;
  const DeckArguments arguments = parse_deck_options(argc, argv, options);
  const auto& values = arguments.values;
  const std::string task = parse_task(values);
  const data::Split split = data::parse_split(values["split"].as<std::string>());
  const std::string input = values.count("input") ? values["input"].as<std::string>() : "";
  if (answers_deck_questions(arguments)) return ExitCode::success;
  return run_on_ranks(kProgram, [&](auto world) {
    const Stopwatch watch;
    const train::PreparedDeck prepared = train::prepare_deck(
        *world, arguments.path, arguments.overrides, resolve_layout, /*need_data=*/input.empty());
    if (input.empty())
      train::on_rank_zero(*world, [&] {
        train::check_datasets(prepared.deck, prepared.vocabulary, data::TokenScan::sample);
        return std::string();
      });
    const bool prints = world->rank() == 0;
    nlohmann::ordered_json result =
        task == "ngram"     ? ngram(prepared, split, *world)
        : task == "lambada" ? lambada(arguments, prepared, input, std::move(world))
        : input.empty()     ? score_split(arguments, prepared, split, std::move(world))
                            : score_text(arguments, prepared, task, input, std::move(world));
    result["seconds"] = watch.seconds();
    if (prints) print_result(values, result);
    return ExitCode::success;
  });
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  return trireme::run_mpi_app(trireme::kProgram, argc, argv, trireme::run);
}
