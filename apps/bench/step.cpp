#include <nlohmann/json.hpp>
#include <optional>

#include "bench/commands.hpp"
#include "core/clock.hpp"
#include "core/files.hpp"
#include "core/philox.hpp"
#include "core/system/process.hpp"
#include "core/text.hpp"
#include "deck_options.hpp"
#include "mpi_app.hpp"
#include "tokenizer/preprocess/preprocess.hpp"
#include "train/startup/startup.hpp"
#include "train/trainer.hpp"

namespace trireme::bench {
namespace {

constexpr const char* kStepProgram = "trireme-bench step";
constexpr const char* kStepUsage =
    "Usage: trireme-bench step DECK [KEY=VALUE ...] [options]\n"
    "Times whole training steps of a deck (forward, backward, update): on the host against\n"
    "OpenBLAS's own sgemm, on GPUs against their peak.\n"
    "A deck without data.train trains on random tokens.\n\n";

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

/// The deck cut down to `steps` iterations and nothing else, with random data in `folder` where it
/// names none.
std::vector<std::string> short_run(const DeckArguments& arguments, std::int64_t steps,
                                   const TemporaryFolder& folder) {
  std::vector<std::string> overrides = arguments.overrides;
  for (const char* key : {"train.samples=", "train.skip=", "batch.rampup.start=",
                          "batch.rampup.step=", "batch.rampup.samples=", "schedule.decay=",
                          "schedule.warmup=0", "evaluate.every=", "evaluate.at_end=false"})
    overrides.push_back(key);
  overrides.push_back(fmt::format("train.iterations={}", steps));
  const deck::Deck deck = deck::load(arguments.path, overrides,
                                     {.need_data = false, .automatic = train::automatic_device()});
  if (deck.data.train) return overrides;
  const std::filesystem::path prefix = folder.path() / "random";
  write_random_dataset(prefix, plan::vocabulary(deck).size,
                       deck.batch.global * steps * deck.model.sequence + 1);
  overrides.push_back("data.train=" + prefix.string());
  overrides.push_back("data.split=[1]");
  return overrides;
}

/// Everything that is known about the timed steps.
struct Measured {
  const deck::Deck& deck;
  const plan::RunPlan& plan;
  double flops = 0.0;           ///< of a step on each rank, by the model's formula
  double ms = 0.0;              ///< median
  std::int64_t peak_bytes = 0;  ///< of the rank with the highest peak

  double tokens_per_second() const { return 1e3 * static_cast<double>(plan.tokens_per_step) / ms; }
  double planned() const { return static_cast<double>(plan.largest().memory.total()); }
  double memory_ratio() const { return static_cast<double>(peak_bytes) / planned(); }

  nlohmann::ordered_json json() const {
    return {{"deck", deck.run.name},
            {"device", name_of(deck.run.device)},
            {"compute", name_of(deck.precision.compute)},
            {"gemm", name_of(deck.precision.gemm)},
            {"ranks", plan.layout.ranks()},
            {"parameters", plan.parameters},
            {"tokens_per_step", plan.tokens_per_step},
            {"ms", ms},
            {"tokens_per_second", tokens_per_second()},
            {"planned_bytes", planned()},
            {"peak_bytes", peak_bytes},
            {"memory_ratio", memory_ratio()}};
  }
  std::string head() const {
    return fmt::format("{}: {:.2f} M parameters, {} a step, {}\n", deck.run.name,
                       plan.parameters / 1e6, counted(plan.tokens_per_step, "token"),
                       counted(plan.layout.ranks(), "rank"));
  }
  /// "bf16", or "bf16 with FP8 GEMMs (tensor)".
  std::string types() const {
    const auto& recipe = deck.precision.fp8.recipe;
    return fmt::format("{}{}", name_of(deck.precision.compute),
                       recipe ? fmt::format(" with FP8 GEMMs ({})", name_of(*recipe)) : "");
  }
  std::string memory_line() const {
    return fmt::format("memory    {} at most, planned {}: {:+.1f} %\n",
                       human_bytes(static_cast<double>(peak_bytes)), human_bytes(planned()),
                       100 * (memory_ratio() - 1));
  }
};

// ---- the host, against OpenBLAS's own sgemm

void measure_host(const Settings& settings, Measured measured, train::Trainer& trainer,
                  bool prints) {
  HostMeter meter(settings);
  const Make step = [&]() -> Call { return [&] { trainer.step(); }; };
  meter.gemm("step", measured.flops, step, 1);
  if (!prints) return;
  const Row& row = meter.rows().front();
  measured.ms = row.ms;
  if (settings.json) {
    nlohmann::ordered_json result = measured.json();
    result.update({{"threads", settings.threads},
                   {"model_gflops", row.rate},
                   {"sgemm_gflops", meter.sgemm_rate()},
                   {"fraction_of_sgemm", row.fraction}});
    return print_out(result.dump(2) + "\n");
  }
  print_out(measured.head() +
            fmt::format("step      {:.0f} ms, median of {}, {} per rank: {:.1f} tokens/s\n"
                        "rate      {:.1f} GFLOP/s per rank by the model's FLOPs\n"
                        "sgemm     {:.1f} GFLOP/s, OpenBLAS's 1024^3 timed between the steps\n"
                        "ratio     {:.1f} %\n",
                        row.ms, settings.repeats, counted(settings.threads, "thread"),
                        measured.tokens_per_second(), row.rate, meter.sgemm_rate(),
                        100 * row.fraction) +
            measured.memory_line());
}

// ---- GPUs, against the data sheet's peak

void measure_gpus(const Settings& settings, Measured measured, train::Trainer& trainer,
                  const device::Backend& backend, bool prints) {
  std::vector<double> ms, passes, reduction, update, forward;
  for (int i = 0; i < settings.repeats; ++i) {
    const Stopwatch watch;
    trainer.step();
    ms.push_back(1e3 * watch.seconds());
  }
  for (int i = 0; i < settings.repeats; ++i) {
    train::Trainer::PhaseSeconds phases;
    trainer.step(&phases);
    passes.push_back(1e3 * phases.passes);
    reduction.push_back(1e3 * phases.reduction);
    update.push_back(1e3 * phases.update);
    const Stopwatch watch;
    trainer.forward_only();
    forward.push_back(1e3 * watch.seconds());
  }
  if (!prints) return;
  measured.ms = median(ms);
  const double tflops = measured.flops / measured.ms / 1e9;
  const DType peak_type = plan::mfu_type(measured.deck);
  const double peak = device::peak_flops(backend.gpu_name(), peak_type) / 1e12;
  const double mfu = peak > 0.0 ? tflops / peak : 0.0;
  const double whole = median(passes), ahead = median(forward);
  const plan::MemoryPlan& memory = measured.plan.largest().memory;
  if (settings.json) {
    nlohmann::ordered_json result = measured.json();
    result.update({{"gpu", backend.gpu_name()},
                   {"model_tflops", tflops},
                   {"peak_tflops", peak},
                   {"mfu", mfu},
                   {"forward_ms", ahead},
                   {"backward_ms", whole - ahead},
                   {"reduction_ms", median(reduction)},
                   {"update_ms", median(update)}});
    return print_out(result.dump(2) + "\n");
  }
  const auto bytes = [](std::size_t value) { return human_bytes(static_cast<double>(value)); };
  print_out(
      measured.head() +
      fmt::format("step      {:.2f} ms, median of {} on {}, {}: {:.0f} tokens/s\n"
                  "rate      {:.1f} TFLOP/s a GPU by the model's FLOPs{}\n"
                  "phases    forward {:.2f} ms, backward {:.2f}, reduction {:.2f}, update {:.2f} "
                  "(each waited for)\n",
                  measured.ms, settings.repeats, backend.gpu_name(), measured.types(),
                  measured.tokens_per_second(), tflops,
                  peak > 0.0 ? fmt::format(", MFU {:.1f} % of {}'s {:.1f}", 100 * mfu,
                                           name_of(peak_type), peak)
                             : "",
                  ahead, whole - ahead, median(reduction), median(update)) +
      measured.memory_line() +
      fmt::format("planned   weights {}, gradients {}, optimizer {}, activations {}, workspace {}, "
                  "transfers {}, libraries {}\n",
                  bytes(memory.weights), bytes(memory.gradients), bytes(memory.optimizer),
                  bytes(memory.activations), bytes(memory.workspace), bytes(memory.communication),
                  bytes(memory.libraries)));
}

ExitCode measure(const DeckArguments& arguments, const Settings& settings,
                 std::unique_ptr<comm::MpiCommunicator> world) {
  std::optional<TemporaryFolder> folder;                // of rank 0
  const std::int64_t steps = 3 * settings.repeats + 4;  // timed ones and their warm-ups
  const auto overrides = nlohmann::json::parse(train::on_rank_zero(*world, [&] {
    return nlohmann::json(short_run(arguments, steps, folder.emplace("trireme-bench"))).dump();
  }));
  const auto [deck, vocabulary] =
      train::prepare_deck(*world, arguments.path, overrides, deck::resolve_world_size);
  const plan::RunPlan plan = plan::plan_run(deck, vocabulary.size);
  train::Devices devices = train::make_devices(deck, std::move(world));
  train::require_memory(deck, vocabulary.size, *devices.backend, devices.groups);
  comm::Groups& groups = devices.groups;
  train::Trainer trainer(deck, vocabulary, groups, *devices.backend, /*reporter=*/nullptr, {});
  // Touches all memory, before a meter allocates some, and chooses GEMM algorithms.
  for (int warm_up = 0; warm_up < 2; ++warm_up) trainer.step();
  const std::size_t on_gpu = devices.backend->memory().used;
  const double peak = groups.world->all_reduce(
      on_gpu > 0 ? static_cast<double>(on_gpu) : static_cast<double>(process_memory().peak),
      comm::Reduce::max);
  const Measured measured{.deck = deck,
                          .plan = plan,
                          .flops = static_cast<double>(plan.tokens_per_step) / plan.layout.ranks() *
                                   model::flops_per_token(deck, vocabulary.size),
                          .peak_bytes = static_cast<std::int64_t>(peak)};
  const bool prints = groups.world->rank() == 0;
  if (deck.run.device == deck::Device::cuda)
    measure_gpus(settings, measured, trainer, *devices.backend, prints);
  else
    measure_host(settings, measured, trainer, prints);
  return ExitCode::success;
}

}  // namespace

ExitCode run_step(int argc, char** argv) {
  po::options_description options = deck_options();
  options.add_options()  //
      ("repeats", po::value<int>()->default_value(5)->value_name("N"),
       "steps that are timed; the median counts")  //
      ("threads", po::value<int>()->value_name("N"),
       "threads of a rank; by default its share of the cores")  //
      ("json", "print JSON instead of a table");
  if (answers_deck_help(argc, argv, kStepProgram, kStepUsage, options)) return ExitCode::success;
  const DeckArguments arguments = parse_deck_options(argc, argv, options);
  if (answers_deck_questions(arguments)) return ExitCode::success;
  return run_on_ranks(kStepProgram, [&](auto world) {
    const int share = device::threads_for_rank(comm::ranks_sharing_cores(*world));
    const auto& values = arguments.values;
    const Settings settings{
        .threads = values.count("threads") ? values["threads"].as<int>() : share,
        .repeats = values["repeats"].as<int>(),
        .json = values.count("json") > 0};
    if (settings.threads < 1 || settings.repeats < 1)
      throw UsageError("--threads and --repeats: expected 1 or more");
    return measure(arguments, settings, std::move(world));
  });
}

}  // namespace trireme::bench
