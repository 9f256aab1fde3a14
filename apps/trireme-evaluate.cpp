// trireme-evaluate: scores a checkpoint on a split of the deck's data or on a text.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/file.hpp"
#include "core/clock.hpp"
#include "core/text.hpp"
#include "deck_options.hpp"
#include "evaluate/results.hpp"
#include "evaluate/tasks.hpp"
#include "model/families/registry.hpp"
#include "model/spec.hpp"
#include "mpi_app.hpp"
#include "report/metrics.hpp"
#include "tokenizer/preprocess/preprocess.hpp"
#include "train/stage_runner.hpp"
#include "train/startup/startup.hpp"
#include "train/verify/step_verifier.hpp"

namespace trireme {
namespace {

constexpr const char* kProgram = "trireme-evaluate";
constexpr const char* kUsage =
    "Usage: trireme-evaluate DECK [KEY=VALUE ...] [options]\n"
    "Scores checkpoints on a split of the deck's data or on a file, on any number of ranks.\n\n"
    "Tasks (--input FILE, where not said otherwise JSON lines):\n"
    "  perplexity  loss per token of the split (BERT: per masked token), or of the text in "
    "--input\n"
    "  wikitext    word-level perplexity of the raw test file of WikiText-103 or PTB\n"
    "  lambada     accuracy of the last token of each text; --strict-lambada: of its last word\n"
    "  hellaswag, piqa, arc, winogrande, blimp\n"
    "              multiple choice by likelihood, of the published files: accuracy, and "
    "normalised\n"
    "              by the choices' characters, as lm-evaluation-harness computes them (0 shots)\n"
    "  choices     the same of your own {\"prompt\", \"choices\", \"answer\"}, the answer from 0\n"
    "  targets     {\"prompt\", \"target\"}: accuracy and loss of the targets\n"
    "  ngram       n-gram baselines of the split, which need no checkpoint\n\n";

po::options_description all_options() {
  po::options_description options = deck_options();
  options.add_options()  //
      ("checkpoint", po::value<std::vector<std::string>>()->value_name("PATH"),
       "a checkpoint or a run folder; default: the newest checkpoint of the deck's run, or before "
       "there is one checkpoint.load; may be "
       "repeated for a table")  //
      ("all-checkpoints", po::bool_switch(),
       "a table of all checkpoints of the run folder")  //
      ("task", po::value<std::string>()->default_value("perplexity")->value_name("TASK"),
       "one of the tasks above")  //
      ("split", po::value<std::string>()->default_value("valid")->value_name("SPLIT"),
       "train, valid or test")  //
      ("input", po::value<std::string>()->value_name("FILE"),
       "file to score instead of a split, plain or compressed: JSON lines; perplexity: with a "
       "\"text\", a *.txt is one document; wikitext: plain text")  //
      ("iterations", po::value<std::int64_t>()->value_name("N"),
       "score the first N batches alone")  //
      ("batch", po::value<std::int64_t>()->value_name("N"),
       "samples of a batch, over all ranks; default: batch.global of the deck")  //
      ("overlapping-eval", po::value<std::int64_t>()->value_name("N"),
       "wikitext: tokens from one window to the next (32, or a shorter model.sequence, which has "
       "no overlap)")                                                                 //
      ("strict-lambada", "lambada: all tokens of the last word, not the last token")  //
      ("plot", po::value<std::string>()->value_name("FILE.svg"),
       "draw the numbers of several checkpoints over their iterations")  //
      ("json", "print one JSON object");
  return options;
}

/// The samples of a batch over all ranks.
std::int64_t batch_of(const po::variables_map& values, const deck::Deck& deck) {
  return values.count("batch") ? values["batch"].as<std::int64_t>() : deck.batch.global;
}

/// The samples, texts or questions of --iterations batches.
std::int64_t sample_limit(const po::variables_map& values, std::int64_t batch) {
  if (!values.count("iterations")) return std::numeric_limits<std::int64_t>::max();
  return values["iterations"].as<std::int64_t>() * batch;
}

/// The deck's tensor and pipeline ranks where they divide the ranks there are, else data ranks
/// only: no layout changes the score of a sample. The batch is one micro-batch a copy, and what
/// depends on the training batches is left out.
void resolve_layout(deck::Deck& deck, std::int64_t ranks, std::int64_t batch) {
  if (ranks % (deck.parallel.tensor * deck.parallel.pipeline) != 0) {
    deck.parallel.tensor = deck.parallel.pipeline = 1;
    deck.parallel.partition.reset();
  }
  // Forward passes alone gain nothing from a schedule.
  deck.precision.embedding = deck::EmbeddingPrecision::same;  // no master weights are loaded
  deck.parallel.schedule = deck::PipelineSchedule::one_f_one_b;
  deck.parallel.interleave = 1;
  deck.parallel.data = ranks / (deck.parallel.tensor * deck.parallel.pipeline);
  deck.batch.micro = std::clamp<std::int64_t>(batch / *deck.parallel.data, 1, deck.batch.micro);
  deck.batch.global = deck.batch.micro * *deck.parallel.data;
  deck.batch.rampup = {};
  deck.train.skip.clear();
}

using Json = nlohmann::ordered_json;

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

/// The checkpoints that the command line names; else the run's or, before there are any, what it
/// will start from.
std::vector<std::string> find_checkpoints(const po::variables_map& values, const deck::Deck& deck) {
  std::vector<std::string> named = {deck.run.output}, found;
  const auto& load = deck.checkpoint.load;
  if (values.count("checkpoint"))
    named = values["checkpoint"].as<std::vector<std::string>>();
  else if (load && !checkpoint::is_foreign(*load) &&
           !checkpoint::find_latest(train::checkpoint_folder(deck)))
    named = {*load};
  const auto add = [&](const std::filesystem::path& path) {
    train::require_same_model(deck, path);
    found.push_back(path.string());
  };
  for (const std::filesystem::path path : named) {
    if (values["all-checkpoints"].as<bool>()) {
      auto steps = checkpoint::list_steps(path / "checkpoints");
      if (steps.empty()) steps = checkpoint::list_steps(path);
      if (steps.empty()) throw IoError("--all-checkpoints: '{}' has none", path.string());
      for (const checkpoint::Step& step : steps) add(step.path);
      continue;
    }
    const auto latest = checkpoint::locate(path);
    if (!latest.note.empty())
      std::fputs(fmt::format("{}: {}\n", kProgram, latest.note).c_str(), stderr);
    add(latest.path);
  }
  return found;
}

/// The model on all ranks, and what scores with it.
class Scorer {
 public:
  /// Collective.
  Scorer(const train::PreparedDeck& prepared, std::unique_ptr<comm::MpiCommunicator> world,
         bool quiet)
      : devices_(train::make_devices(prepared.deck, std::move(world))),
        config_(plan::stage_config(prepared.deck, prepared.vocabulary)),
        tokenizer_(prepared.vocabulary.tokenizer),
        quiet_(quiet) {
    devices_.backend->reserve_workspace(model::kernel_workspace_bytes(config_));
    parameters_.emplace(*devices_.backend, model::declare_parameters(config_.spec), groups().layout,
                        groups().place, config_.precision);
    // One slot is computed while the other is sent.
    runner_.emplace(groups(), *devices_.backend, config_, *parameters_,
                    groups().layout.pipeline > 1 ? 2 : 1);
  }

  comm::Groups& groups() { return devices_.groups; }
  /// Loads the weights of `path`, and warns where they were trained with another tokenizer; returns
  /// its iteration. Collective.
  std::int64_t load(const std::string& path) {
    path_ = path;
    const auto header = load_weights(path, groups(), *devices_.backend, *parameters_);
    const std::string problem =
        tokenizer_ ? train::tokenizer_problem(header, *tokenizer_) : std::string();
    if (!problem.empty() && groups().world->rank() == 0)
      std::fputs(fmt::format("{}: warning: {}\n", kProgram, problem).c_str(), stderr);
    return header.get<std::int64_t>("iteration");
  }
  /// Scores `task` and returns its numbers. `what` is scored, for messages. Collective.
  Json score(const evaluate::Task& task, const std::string& what) {
    Progress progress = meter(task.dataset());
    const train::TaskScore score =
        train::score_task(task, *runner_, groups(),
                          [&](std::int64_t done) { progress.update(static_cast<double>(done)); });
    require_finite(score.sum, what);
    Json json;
    for (const auto& [name, value] : score.metrics)
      std::visit([&, &key = name](auto number) { json[key] = number; }, value);
    return json;
  }
  /// The loss of a dataset. Collective.
  Json score(const data::Dataset& dataset, const std::string& what) {
    Progress progress = meter(dataset);
    const train::LossSum sum = runner_->evaluate_all(
        dataset, [&](std::int64_t done) { progress.update(static_cast<double>(done)); });
    require_finite(sum, what);
    Json json{{"loss", sum.mean()},
              {"perplexity", report::perplexity(sum.mean())},
              {"tokens", static_cast<std::int64_t>(sum.tokens)}};
    if (config_.spec.head.sentence_classes > 0)
      json.update(Json{{"sentence_loss", sum.sentence_mean()},
                       {"sentence_accuracy", sum.sentence_accuracy()},
                       {"sentences", static_cast<std::int64_t>(sum.sentences)}});
    return json;
  }

 private:
  Progress meter(const data::Dataset& dataset) {
    return Progress("evaluating", "sample", static_cast<double>(dataset.samples()),
                    groups().world->rank() == 0 && !quiet_ ? stderr : nullptr);
  }
  void require_finite(const train::LossSum& sum, const std::string& what) const {
    if (sum.tokens == 0.0)
      throw train::CollectiveError(ExitCode::data, fmt::format("{} has no token to score", what));
    if (!std::isfinite(sum.mean()))
      throw train::CollectiveError(
          ExitCode::diverged,
          fmt::format("the loss of '{}' on {} is not finite: the model has diverged", path_, what));
  }

  train::Devices devices_;
  model::StageConfig config_;
  std::optional<tokenizer::TokenizerIdentity> tokenizer_;  ///< the deck's
  bool quiet_;
  std::string path_;
  std::optional<model::ParameterStore> parameters_;
  std::optional<train::StageRunner> runner_;
};

/// The task on --input, tokenized by the deck's tokenizer.
std::unique_ptr<const evaluate::Task> read_task(const po::variables_map& values,
                                                const deck::Deck& deck, std::int64_t limit) {
  if (!model::family_of(deck).causal)
    throw DeckError(
        "--input scores the token that follows, but model.family = {} predicts masked tokens; "
        "score a split instead, such as --split valid",
        name_of(deck.model.family));
  const auto spec = plan::tokenizer_spec(deck);
  if (!spec) throw DeckError("--input needs data.tokenizer, which turns its text into token ids");
  const bool strict = values.count("strict-lambada") > 0;
  std::optional<std::int64_t> overlap;
  if (values.count("overlapping-eval")) overlap = values["overlapping-eval"].as<std::int64_t>();
  return evaluate::make_task({.name = strict ? "strict-lambada" : values["task"].as<std::string>(),
                              .file = values["input"].as<std::string>(),
                              .overlap = overlap,
                              .limit = limit},
                             *tokenizer::make_tokenizer(*spec), deck.model.sequence);
}

/// A result for each checkpoint that the command line names.
std::vector<Json> score_checkpoints(const DeckArguments& arguments,
                                    const train::PreparedDeck& prepared, const std::string& task,
                                    data::Split split, std::int64_t batch,
                                    std::unique_ptr<comm::MpiCommunicator> world) {
  const deck::Deck& deck = prepared.deck;
  const auto& vocabulary = prepared.vocabulary;
  const auto& values = arguments.values;
  const std::string input = values.count("input") ? values["input"].as<std::string>() : "";
  const std::int64_t limit = sample_limit(values, batch);
  // First: opening a dataset may write its index cache.
  const std::string paths = train::on_rank_zero(
      *world, [&] { return fmt::format("{}", fmt::join(find_checkpoints(values, deck), "\n")); });
  std::unique_ptr<const evaluate::Task> text;
  std::unique_ptr<const data::Dataset> dataset;
  if (input.empty())
    dataset = train::open_dataset(deck, vocabulary, split, std::nullopt, *world);
  else
    train::throw_collectively([&] {
      if (world->size() > 1)
        tokenizer::require_rereadable({input}, "an evaluation on several ranks");
      text = read_task(values, deck, limit);
    });
  Scorer scorer(prepared, std::move(world), values.count("quiet") > 0);
  std::vector<Json> results;
  std::istringstream lines(paths);
  for (std::string path; std::getline(lines, path);) {
    const Stopwatch watch;
    Json result{{"task", task}};
    if (input.empty())
      result["split"] = data::name_of(split);
    else
      result["input"] = input;
    if (task == "lambada") result["strict"] = values.count("strict-lambada") > 0;
    result["checkpoint"] = path;
    result["iteration"] = scorer.load(path);
    result.update(text ? scorer.score(*text, fmt::format("'{}'", input))
                       : scorer.score(evaluate::FirstSamples(*dataset, limit),
                                      fmt::format("the {} split", name_of(split))));
    result["seconds"] = watch.seconds();
    results.push_back(std::move(result));
  }
  return results;
}

Json ngram(const train::PreparedDeck& prepared, data::Split split, comm::MpiCommunicator& world,
           std::FILE* progress) {
  const deck::Deck& deck = prepared.deck;
  const auto& vocabulary = prepared.vocabulary;
  const auto open = [&](data::Split which) {
    return train::open_dataset(deck, vocabulary, which, std::nullopt, world);
  };
  const auto train = open(data::Split::train), held_out = open(split);
  const evaluate::NgramLoss loss =
      evaluate::ngram_loss(*train, *held_out, vocabulary.size, progress);
  Json result{{"task", "ngram"}, {"split", data::name_of(split)}, {"unigram", loss.unigram}};
  // The token before a masked one is not what a bigram is counted from.
  if (model::family_of(deck).causal) result["bigram"] = loss.bigram;
  result["tokens"] = loss.tokens;
  return result;
}

/// The task; throws UsageError for options that do not belong to it.
std::string parse_task(const po::variables_map& values) {
  const std::string task = values["task"].as<std::string>();
  std::vector<std::string_view> tasks = evaluate::task_names();
  std::erase(tasks, "strict-lambada");  // --strict-lambada says it
  tasks.push_back("ngram");
  const bool input = values.count("input") > 0;
  if (std::ranges::find(tasks, task) == tasks.end())
    throw UsageError("--task {}: expected one of {}{}", task, fmt::join(tasks, ", "),
                     did_you_mean(task, tasks));
  if (task != "perplexity" && task != "ngram" && !input)
    throw UsageError("--task {} needs --input, the file to score", task);
  if (task == "ngram" && values.count("plot"))
    throw UsageError("--plot draws a curve over several checkpoints, which --task ngram needs not");
  check_plot(values);
  const bool all = values["all-checkpoints"].as<bool>();
  if (task == "ngram" && (input || all || values.count("checkpoint")))
    throw UsageError("--task ngram counts the training data and takes no --{}",
                     input ? "input"
                     : all ? "all-checkpoints"
                           : "checkpoint");
  if (input && !values["split"].defaulted())
    throw UsageError("--input and --split: give one of them");
  if (task != "wikitext" && values.count("overlapping-eval"))
    throw UsageError("--overlapping-eval belongs to --task wikitext");
  if (task != "lambada" && values.count("strict-lambada"))
    throw UsageError("--strict-lambada belongs to --task lambada");
  for (const char* option : {"iterations", "batch"}) {
    if (!values.count(option)) continue;
    if (const auto value = values[option].as<std::int64_t>(); value < 1 || value > 1'000'000'000)
      throw UsageError("--{} {}: expected 1 to 1000000000", option, value);
    if (task == "ngram" || (task == "wikitext" && std::string_view(option) == "iterations"))
      throw UsageError("--{}: --task {} scores all of its text", option, task);
  }
  return task;
}

ExitCode run(int argc, char** argv) {
  const po::options_description options = all_options();
  if (answers_deck_help(argc, argv, kProgram, kUsage, options)) return ExitCode::success;
  const DeckArguments arguments = parse_deck_options(argc, argv, options);
  const auto& values = arguments.values;
  const std::string task = parse_task(values);
  const data::Split split = data::parse_split(values["split"].as<std::string>());
  const bool of_split = !values.count("input");
  std::int64_t batch = 0;
  const auto resolve = [&](deck::Deck& deck, std::int64_t ranks) {
    resolve_layout(deck, ranks, batch = batch_of(values, deck));
  };
  const auto check = [&](const deck::Deck& deck, std::int64_t) {
    if (values.count("checkpoint")) find_checkpoints(values, deck);
    const std::string input = of_split ? "" : values["input"].as<std::string>();
    std::error_code unknown;
    const bool is_pipe = input == "-" || std::filesystem::is_other(input, unknown);
    if (!of_split && !is_pipe)  // which the evaluation could read no more
      read_task(values, deck, sample_limit(values, batch));
    return std::string();
  };
  if (answers_deck_questions(arguments, {.check = check, .resolve = resolve}))
    return ExitCode::success;
  return run_on_ranks(kProgram, [&](auto world) {
    const Stopwatch watch;
    const auto resolve_run = [&](deck::Deck& deck, std::int64_t ranks) {
      resolve(deck, ranks);
      deck.recompute = {};  // forward passes alone keep nothing to recompute
    };
    const train::PreparedDeck prepared = train::prepare_deck(
        *world, arguments.path, arguments.overrides, resolve_run, /*need_data=*/of_split);
    batch = std::stoll(train::broadcast_text(*world, std::to_string(batch)));  // of rank 0
    if (of_split)
      train::on_rank_zero(*world, [&] {
        train::check_datasets(prepared.deck, prepared.vocabulary, data::TokenScan::sample);
        return std::string();
      });
    const bool prints = world->rank() == 0;
    std::vector<Json> results;
    if (task == "ngram") {
      results.push_back(
          ngram(prepared, split, *world, world->rank() == 0 ? progress_output(values) : nullptr));
      results.back()["seconds"] = watch.seconds();
    } else {
      results = score_checkpoints(arguments, prepared, task, split, batch, std::move(world));
    }
    if (prints) print_results(results, values.count("json") > 0);
    if (prints && values.count("plot"))
      plot_results(results, values["plot"].template as<std::string>());
    return ExitCode::success;
  });
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  return trireme::run_mpi_app(trireme::kProgram, argc, argv, trireme::run);
}
