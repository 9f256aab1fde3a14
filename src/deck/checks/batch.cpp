// Sizes of batches, and the length of a run.
#include "deck/checks/checks.hpp"

#include <fmt/format.h>

#include "deck/keys/schema.hpp"
#include "deck/value.hpp"

namespace trireme::deck {
namespace {

// "6 or 12": the multiples of `grain` around `number`, which is none.
std::string nearest_multiples(std::int64_t number, std::int64_t grain) {
  const std::int64_t above = (number / grain + 1) * grain;
  return above == grain ? fmt::format("{}", above) : fmt::format("{} or {}", above - grain, above);
}

// What all sizes are multiples of, in words and as a number.
struct Grain {
  std::string words;
  std::int64_t samples = 0;
};

// Interleaved stages take micro-batches in groups of as many as there are stages.
std::int64_t group(const Deck& deck) {
  const bool interleaved = deck.parallel.schedule == PipelineSchedule::interleaved;
  return interleaved && deck.parallel.pipeline > 0 ? deck.parallel.pipeline : 1;
}

Grain grain_of(const Deck& deck, std::int64_t data, std::int64_t group) {
  const std::int64_t micro = deck.batch.micro;
  Grain grain{.words = "batch.micro", .samples = micro * data * group};
  std::string numbers = fmt::format("{}", micro);
  const auto times = [&](std::string_view key, std::int64_t value) {
    if (value == 1) return;
    grain.words += fmt::format(" * {}", key);
    numbers += fmt::format(" * {}", value);
  };
  times("parallel.data", data);
  times("parallel.pipeline", group);
  if (grain.samples != micro) grain.words += fmt::format(" = {}", numbers);
  return grain;
}

std::string not_a_multiple(std::string_view key, std::int64_t value, const Grain& grain) {
  return fmt::format("{} = {} is not a multiple of {} = {} (try {})", key, value, grain.words,
                     grain.samples, nearest_multiples(value, grain.samples));
}

std::optional<BatchProblem> global_problem(const Deck& deck, std::int64_t data) {
  const std::int64_t global = deck.batch.global;
  const Grain grain = grain_of(deck, data, /*group=*/1);
  if (global % grain.samples != 0)
    return BatchProblem{"batch.global", not_a_multiple("batch.global", global, grain)};
  const std::int64_t micro_batches = global / grain.samples;
  const std::int64_t stages = group(deck);
  if (micro_batches % stages == 0) return std::nullopt;
  return BatchProblem{
      "batch.global",
      fmt::format("batch.global = {} makes {} micro-batches on each data rank; parallel.schedule = "
                  "interleaved needs a multiple of parallel.pipeline = {} (try {})",
                  global, micro_batches, stages,
                  nearest_multiples(global, grain.samples * stages))};
}

std::optional<BatchProblem> rampup_problem(const Deck& deck, std::int64_t data) {
  const std::int64_t global = deck.batch.global;
  const std::int64_t start = *deck.batch.rampup.start, step = *deck.batch.rampup.step;
  const Grain grain = grain_of(deck, data, group(deck));
  if (deck.train.iterations && !deck.train.samples) {
    const std::int64_t samples = *deck.train.iterations * global;
    return BatchProblem{
        "batch.rampup",
        fmt::format("batch.rampup needs train.samples: train.iterations = {} does not say how much "
                    "is trained while batches grow (try train.samples: {})",
                    *deck.train.iterations, samples)};
  }
  if (start >= global)
    return BatchProblem{
        "batch.rampup.start",
        fmt::format("batch.rampup.start = {} is not less than batch.global = {} ({})", start,
                    global,
                    grain.samples < global ? fmt::format("try {}", grain.samples)
                                           : "leave batch.rampup out")};
  if (start % grain.samples != 0)
    return BatchProblem{"batch.rampup.start", not_a_multiple("batch.rampup.start", start, grain)};
  if (step % grain.samples != 0)
    return BatchProblem{"batch.rampup.step", not_a_multiple("batch.rampup.step", step, grain)};
  if ((global - start) % step == 0) return std::nullopt;
  return BatchProblem{
      "batch.rampup.step",
      fmt::format("batch.rampup.step = {} does not divide batch.global - batch.rampup.start = {} - "
                  "{} = {} (try {})",
                  step, global, start, global - start,
                  divisor_list(global - start, step, /*factor=*/grain.samples))};
}

}  // namespace

std::optional<BatchProblem> batch_problem(const Deck& deck, std::int64_t data) {
  const Batch& batch = deck.batch;
  const Rampup& ramp = batch.rampup;
  if (batch.micro * data == 0 || batch.global == 0) return std::nullopt;
  if (auto problem = global_problem(deck, data)) return problem;
  if (!ramp.start || !ramp.step || !ramp.samples) return std::nullopt;
  return rampup_problem(deck, data);
}

void Checker::batch_and_length() {
  const Train& train = deck_.train;
  const Batch& batch = deck_.batch;
  const bool both = train.iterations && train.samples;
  require(
      !both, {"train.samples", "train.iterations"},
      [&] {
        return fmt::format(
            "train.iterations = {} and train.samples = {} both say how long to train; give one",
            *train.iterations, *train.samples);
      },
      Suggestion::leave_out_one);
  const std::int64_t first = batch.rampup.start.value_or(batch.global);
  require(!train.samples || *train.samples >= first,
          {"train.samples", "batch.global", "batch.rampup.start"}, [&] {
            return fmt::format("train.samples = {} is less than {} = {} (try {})", *train.samples,
                               batch.rampup.start ? "batch.rampup.start" : "batch.global", first,
                               first);
          });
  const auto problem = batch_problem(deck_, deck_.parallel.data.value_or(1));
  require(!problem,
          {problem ? problem->key : "", "batch.global", "batch.rampup.start", "batch.rampup.step",
           "batch.micro", "parallel.data", "parallel.schedule", "train.iterations"},
          [&] { return problem->text; });
}

void Checker::rampup() {
  const Rampup& ramp = deck_.batch.rampup;
  if (!ramp.start && !ramp.step && !ramp.samples) return;
  const auto needed = [&](bool given, std::string_view path) {
    require(given, {path, "batch.rampup"},
            [path] { return fmt::format("missing key '{}': {}", path, find_key(path)->help); });
  };
  needed(ramp.start.has_value(), "batch.rampup.start");
  needed(ramp.step.has_value(), "batch.rampup.step");
  needed(ramp.samples.has_value(), "batch.rampup.samples");
}

void Checker::skipped_data() {
  const auto& ranges = deck_.train.skip;
  const std::int64_t iterations = total_iterations(deck_);
  require(
      ranges.empty() || ranges.back().first <= iterations,
      {"train.skip", "train.iterations", "train.samples", "batch.global"},
      [&] {
        return fmt::format("train.skip = {} begins after the last iteration, {}; leave it out",
                           write_range(ranges.back()), iterations);
      },
      Suggestion::leave_out_first);
}

}  // namespace trireme::deck
