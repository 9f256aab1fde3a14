// trireme-evaluate: scores a checkpoint on a split of the deck's data.
#include <cmath>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/folder.hpp"
#include "core/clock.hpp"
#include "core/progress.hpp"
#include "deck_options.hpp"
#include "evaluate/ngram.hpp"
#include "model/spec.hpp"
#include "mpi_app.hpp"
#include "report/metrics.hpp"
#include "train/non_finite.hpp"
#include "train/stage_runner.hpp"
#include "train/startup/datasets.hpp"
#include "train/startup/devices.hpp"
#include "train/startup/restart.hpp"

namespace trireme {
namespace {

constexpr const char* kProgram = "trireme-evaluate";
constexpr const char* kUsage =
    "Usage: trireme-evaluate DECK [KEY=VALUE ...] [options]\n"
    "Scores a checkpoint on a whole split of the deck's data, on any number of ranks.\n\n";

po::options_description all_options() {
  po::options_description options = deck_options();
  options.add_options()  //
      ("checkpoint", po::value<std::string>()->value_name("PATH"),
       "a checkpoint or a run folder; default: the newest checkpoint of the deck's run")  //
      ("task", po::value<std::string>()->default_value("perplexity")->value_name("TASK"),
       "perplexity, or ngram: n-gram baselines, which need no checkpoint")  //
      ("split", po::value<std::string>()->default_value("valid")->value_name("SPLIT"),
       "train, valid or test")  //
      ("quiet", po::bool_switch(), "no progress meter")("json", "print one JSON object");
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
  // Forward passes alone keep nothing to compute again, and gain nothing from a schedule.
  deck.recompute = {};
  deck.parallel.schedule = deck::PipelineSchedule::one_f_one_b;
  deck.parallel.interleave = 1;
  deck.parallel.data = ranks / (deck.parallel.tensor * deck.parallel.pipeline);
  deck.batch.global = deck.batch.micro * *deck.parallel.data;
  deck.batch.rampup = {};
  deck.train.skip.clear();
}

void print_result(const po::variables_map& values, const nlohmann::ordered_json& result) {
  if (values.count("json")) return print_out(result.dump() + "\n");
  std::string text;
  for (const auto& [key, value] : result.items())
    text +=
        fmt::format("{:<12}{}\n", key, value.is_string() ? value.get<std::string>() : value.dump());
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

nlohmann::ordered_json perplexity(const DeckArguments& arguments,
                                  const train::PreparedDeck& prepared, data::Split split,
                                  std::unique_ptr<comm::MpiCommunicator> world) {
  const Stopwatch watch;
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
  const auto dataset = train::open_dataset(deck, vocabulary, split, std::nullopt, *world);
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
  Progress progress("evaluating", "sample", static_cast<double>(dataset->samples()),
                    meter ? stderr : nullptr);
  const train::LossSum sum = runner.evaluate_all(
      *dataset, [&](std::int64_t done) { progress.update(static_cast<double>(done)); });
  if (sum.tokens == 0.0)
    throw train::CollectiveError(ExitCode::data,
                                 fmt::format("the {} split has no token to score", name_of(split)));
  if (!std::isfinite(sum.mean()))
    throw train::CollectiveError(
        ExitCode::diverged,
        fmt::format("the loss of '{}' on the {} split is not finite: the model has diverged", path,
                    name_of(split)));
  return {{"task", "perplexity"},
          {"split", data::name_of(split)},
          {"checkpoint", path},
          {"iteration", header.get<std::int64_t>("iteration")},
          {"loss", sum.mean()},
          {"perplexity", report::perplexity(sum.mean())},
          {"tokens", static_cast<std::int64_t>(sum.tokens)},
          {"seconds", watch.seconds()}};
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

ExitCode run(int argc, char** argv) {
  const po::options_description options = all_options();
  if (answers_deck_help(argc, argv, kProgram, kUsage, options)) return ExitCode::success;
  const DeckArguments arguments = parse_deck_options(argc, argv, options);
  const std::string task = arguments.values["task"].as<std::string>();
  if (task != "perplexity" && task != "ngram")
    throw UsageError("--task {}: perplexity and ngram are built", task);
  if (task == "ngram" && arguments.values.count("checkpoint"))
    throw UsageError("--task ngram counts the training data and takes no --checkpoint");
  const data::Split split = data::parse_split(arguments.values["split"].as<std::string>());
  if (answers_deck_questions(arguments)) return ExitCode::success;
  return run_on_ranks(kProgram, [&](auto world) {
    const train::PreparedDeck prepared =
        train::prepare_deck(*world, arguments.path, arguments.overrides, resolve_layout);
    train::on_rank_zero(*world, [&] {
      train::check_datasets(prepared.deck, prepared.vocabulary, data::TokenScan::sample);
      return std::string();
    });
    const bool prints = world->rank() == 0;
    const auto result = task == "ngram" ? ngram(prepared, split, *world)
                                        : perplexity(arguments, prepared, split, std::move(world));
    if (prints) print_result(arguments.values, result);
    return ExitCode::success;
  });
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  return trireme::run_mpi_app(trireme::kProgram, argc, argv, trireme::run);
}
