#include <unistd.h>

#include <nlohmann/json.hpp>

#include "bench/commands.hpp"
#include "bench/table.hpp"
#include "core/files.hpp"
#include "core/memory.hpp"
#include "core/philox.hpp"
#include "deck_options.hpp"
#include "mpi_app.hpp"
#include "report/flops.hpp"
#include "tokenizer/preprocess/dataset_writer.hpp"
#include "train/trainer.hpp"

namespace trireme::bench {
namespace {

constexpr const char* kProgram = "trireme-bench step";
constexpr const char* kUsage =
    "Usage: trireme-bench step DECK [KEY=VALUE ...] [options]\n"
    "Times whole training steps of a deck (forward, backward, AdamW) against OpenBLAS's own "
    "sgemm.\n"
    "A deck without data.train trains on random tokens.\n\n";

/// A folder that is gone with this.
class TemporaryFolder {
 public:
  TemporaryFolder()
      : path_(std::filesystem::temp_directory_path() /
              fmt::format("trireme-bench-{}", ::getpid())) {}
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Writes `tokens` random ids below `vocab` as one document.
void write_random_dataset(const std::filesystem::path& prefix, std::int64_t vocab,
                          std::int64_t tokens) {
  std::vector<std::int32_t> ids(tokens);
  for (std::int64_t i = 0; i < tokens; ++i)
    ids[i] = static_cast<std::int32_t>(philox_uniform(1234, 0, i) * static_cast<double>(vocab));
  tokenizer::DatasetWriter writer(prefix, static_cast<std::int32_t>(vocab));
  writer.add_document(ids);
  writer.finish();
}

/// The deck cut down to `steps` iterations and nothing else, with random data where it names none.
std::vector<std::string> short_run(const DeckArguments& arguments, std::int64_t steps,
                                   const TemporaryFolder& folder, bool writes) {
  std::vector<std::string> overrides = arguments.overrides;
  for (const char* key : {"train.samples=", "schedule.decay=", "schedule.warmup=0",
                          "evaluate.every=", "evaluate.at_end=false"})
    overrides.push_back(key);
  overrides.push_back(fmt::format("train.iterations={}", steps));
  const deck::Deck deck = deck::load(arguments.path, overrides, {.need_data = false});
  if (deck.data.train) return overrides;
  const std::filesystem::path prefix = folder.path() / "random";
  if (writes)
    write_random_dataset(prefix, plan::vocabulary(deck).size,
                         deck.batch.global * steps * deck.model.sequence + 1);
  overrides.push_back("data.train=" + prefix.string());
  overrides.push_back("data.split=[1]");
  return overrides;
}

void print_result(const Settings& settings, const Meter& meter, const deck::Deck& deck,
                  const plan::RunPlan& plan, std::int64_t peak_bytes) {
  const Row& row = meter.rows().front();
  const double tokens_per_second = 1e3 * static_cast<double>(plan.tokens_per_step) / row.ms;
  const double planned = static_cast<double>(plan.largest().memory.total());
  const double memory_ratio = static_cast<double>(peak_bytes) / planned;
  if (settings.json) {
    const nlohmann::ordered_json result{{"deck", deck.run.name},
                                        {"ranks", plan.layout.ranks()},
                                        {"threads", settings.threads},
                                        {"parameters", plan.parameters},
                                        {"tokens_per_step", plan.tokens_per_step},
                                        {"ms", row.ms},
                                        {"tokens_per_second", tokens_per_second},
                                        {"model_gflops", row.rate},
                                        {"sgemm_gflops", meter.sgemm_rate()},
                                        {"fraction_of_sgemm", row.fraction},
                                        {"planned_bytes", planned},
                                        {"peak_bytes", peak_bytes},
                                        {"memory_ratio", memory_ratio}};
    return print_out(result.dump(2) + "\n");
  }
  print_out(fmt::format(
      "{}: {:.2f} M parameters, {} tokens a step, {} ranks, {} threads a rank\n"
      "step      {:.0f} ms, median of {}: {:.1f} tokens/s\n"
      "rate      {:.1f} GFLOP/s a rank by the model's FLOPs\n"
      "sgemm     {:.1f} GFLOP/s, OpenBLAS's own 1024^3 timed between the steps\n"
      "ratio     {:.1f} %\n"
      "memory    {} at most, planned {}: {:+.1f} %\n",
      deck.run.name, plan.parameters / 1e6, plan.tokens_per_step, plan.layout.ranks(),
      settings.threads, row.ms, settings.repeats, tokens_per_second, row.rate, meter.sgemm_rate(),
      100 * row.fraction, human_bytes(static_cast<double>(peak_bytes)), human_bytes(planned),
      100 * (memory_ratio - 1)));
}

ExitCode measure(const DeckArguments& arguments, const Settings& settings,
                 std::unique_ptr<comm::MpiCommunicator> world) {
  const TemporaryFolder folder;                         // named by rank 0 alone, see below
  const std::int64_t steps = 2 * settings.repeats + 2;  // each timed one follows a warm-up
  DeckArguments shortened = arguments;
  if (world->rank() == 0)
    shortened.overrides = short_run(arguments, steps, folder, /*writes=*/true);
  const auto [deck, vocabulary] =
      train::prepare_deck(*world, arguments.path, shortened.overrides, deck::resolve_world_size);
  const plan::RunPlan plan = plan::plan_run(deck, vocabulary.size);
  comm::Groups groups = comm::make_groups(std::move(world), plan::layout(deck));
  const auto backend = device::make_host_backend(settings.threads);
  train::Trainer trainer(deck, vocabulary, groups, *backend, /*reporter=*/nullptr, {});
  trainer.step();  // touches all memory, before the meter takes some of its own
  const double peak =
      groups.world->all_reduce(static_cast<double>(process_memory().peak), comm::Reduce::max);

  Meter meter(settings);
  const double flops = static_cast<double>(plan.tokens_per_step) / plan.layout.ranks() *
                       report::model_flops_per_token(deck.model.layers, deck.model.hidden,
                                                     deck.model.sequence, vocabulary.size);
  meter.product("step", flops, 1, [&] { trainer.step(); });
  if (groups.world->rank() == 0)
    print_result(settings, meter, deck, plan, static_cast<std::int64_t>(peak));
  return ExitCode::success;
}

}  // namespace

ExitCode run_step(int argc, char** argv) {
  po::options_description options = deck_options();
  options.add_options()("repeats", po::value<int>()->default_value(5),
                        "steps that are timed; the median counts")(
      "threads", po::value<int>(), "threads of a rank; by default its share of the cores")(
      "json", "print JSON instead of a table");
  if (answers_deck_help(argc, argv, kProgram, kUsage, options)) return ExitCode::success;
  const DeckArguments arguments = parse_deck_options(argc, argv, options);
  if (answers_deck_questions(arguments)) return ExitCode::success;
  return run_on_ranks(kProgram, [&](auto world) {
    const int share = device::threads_for_rank(comm::ranks_sharing_cores(*world));
    const auto& values = arguments.values;
    const Settings settings{
        .threads = values.count("threads") ? values["threads"].as<int>() : share,
        .repeats = values["repeats"].as<int>(),
        .json = values.count("json") > 0};
    if (settings.threads < 1 || settings.repeats < 1)
      throw UsageError("--threads and --repeats are at least 1");
    return measure(arguments, settings, std::move(world));
  });
}

}  // namespace trireme::bench
