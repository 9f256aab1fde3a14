// Model, layout and pipeline, and sizes of batches.
#include "deck/checks/checks.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "core/text.hpp"
#include "deck/keys/schema.hpp"
#include "deck/load.hpp"
#include "deck/value.hpp"

namespace trireme::deck {
namespace {

std::string try_divisors(std::int64_t number, std::int64_t near) {
  return "try " + divisor_list(number, near);
}

// `layers` over `stages`, as equal as can be: "3-3-2-2".
std::string even_partition(std::int64_t layers, std::int64_t stages) {
  std::vector<std::int64_t> parts(stages, layers / stages);
  std::for_each_n(parts.begin(), layers % stages, [](std::int64_t& part) { ++part; });
  return fmt::format("{}", fmt::join(parts, "-"));
}

}  // namespace

void Checker::family() {
  for (const Key& key : keys())
    require(
        !key.family || key.family == deck_.model.family || !given_.places.contains(key.path),
        {key.path, "model.family"},
        [&] {
          return fmt::format("'{}' needs model.family = {}, but it is {}; leave it out", key.path,
                             name_of(*key.family), name_of(deck_.model.family));
        },
        Suggestion::leave_out_first);
}

void Checker::model() {
  const Model& model = deck_.model;
  const bool own_size = given_.places.contains("model.head_dim");
  require(own_size || model.heads == 0 || model.hidden % model.heads == 0,
          {"model.heads", "model.hidden"}, [&] {
            return fmt::format("model.heads = {} does not divide model.hidden = {} ({})",
                               model.heads, model.hidden, try_divisors(model.hidden, model.heads));
          });
  if (deck_.run.device == Device::cuda) gpu_kernels();
  require(model.positions >= model.sequence, {"model.positions", "model.sequence"}, [&] {
    return fmt::format("model.positions = {} is less than model.sequence = {} (try {})",
                       model.positions, model.sequence, model.sequence);
  });
}

void Checker::gpu_kernels() {
  const Model& model = deck_.model;
  require(model.hidden <= kMaxHiddenOnGpu, {"model.hidden", "run.device"}, [&] {
    return fmt::format(
        "model.hidden = {}, but the kernels for GPUs take at most {} (try run.device: host)",
        model.hidden, kMaxHiddenOnGpu);
  });
  const std::int64_t head = model.head_size();
  require(head <= kMaxHeadOnGpu, {"model.head_dim", "model.heads", "model.hidden", "run.device"},
          [&] {
            const std::int64_t least = (model.hidden + kMaxHeadOnGpu - 1) / kMaxHeadOnGpu;
            return fmt::format(
                "model.heads = {} makes heads of {}, but the kernels for GPUs take at most {} (try "
                "{}, or "
                "run.device: host)",
                model.heads, head, kMaxHeadOnGpu, divisor_list(model.hidden, least, 1, least));
          });
}

void Checker::layout() {
  const Model& model = deck_.model;
  const Parallel& parallel = deck_.parallel;
  const std::int64_t tensor = std::max<std::int64_t>(parallel.tensor, 1);
  const std::int64_t stages = std::max<std::int64_t>(parallel.pipeline, 1);
  const std::int64_t common = std::gcd(model.heads, model.ffn);
  require(model.heads % tensor == 0, {"parallel.tensor", "model.heads"}, [&] {
    return fmt::format("parallel.tensor = {} does not divide model.heads = {} ({})", tensor,
                       model.heads, try_divisors(common > 0 ? common : model.heads, tensor));
  });
  require(model.heads % tensor != 0 || model.ffn % tensor == 0,
          {"parallel.tensor", "model.ffn", "model.hidden", "model.heads"}, [&] {
            return fmt::format("parallel.tensor = {} does not divide model.ffn = {} ({})", tensor,
                               model.ffn, try_divisors(common > 0 ? common : model.ffn, tensor));
          });
  require(!parallel.sequence || model.heads % tensor != 0 || model.sequence % tensor == 0,
          {"parallel.tensor", "parallel.sequence", "model.sequence", "model.heads"}, [&] {
            return fmt::format(
                "parallel.tensor = {} does not divide model.sequence = {}, which parallel.sequence "
                "cuts ({}, or parallel.sequence: false)",
                tensor, model.sequence,
                try_divisors(std::gcd(common > 0 ? common : model.heads, model.sequence), tensor));
          });
  if (!parallel.partition) {
    // Interleaved chunks are equal: see pipeline().
    require(parallel.interleave > 1 || stages <= model.layers,
            {"parallel.pipeline", "model.layers", "parallel.partition"}, [&] {
              return fmt::format(
                  "parallel.pipeline = {} is more than model.layers = {} (try {} or fewer, or a "
                  "parallel.partition with stages without layers)",
                  stages, model.layers, model.layers);
            });
    return;
  }
  const std::string written = Codec<std::vector<std::int64_t>>::write(*parallel.partition);
  const auto parts = static_cast<std::int64_t>(parallel.partition->size());
  const std::int64_t sum =
      std::accumulate(parallel.partition->begin(), parallel.partition->end(), std::int64_t{0});
  require(parts == stages, {"parallel.partition", "parallel.pipeline", "model.layers"}, [&] {
    return fmt::format("parallel.partition = {} has {}, but parallel.pipeline = {} (try {})",
                       written, counted(parts, "part"), stages,
                       stages <= model.layers ? even_partition(model.layers, stages)
                                              : fmt::format("parallel.pipeline: {}", parts));
  });
  require(parts != stages || sum == model.layers, {"parallel.partition", "model.layers"}, [&] {
    return fmt::format("parallel.partition = {} has {}, but model.layers = {} (try {})", written,
                       counted(sum, "layer"), model.layers, even_partition(model.layers, stages));
  });
}

void Checker::pipeline() {
  const Parallel& parallel = deck_.parallel;
  const std::int64_t stages = std::max<std::int64_t>(parallel.pipeline, 1);
  const std::int64_t chunks = std::max<std::int64_t>(parallel.interleave, 1);
  const std::string_view name = name_of(parallel.schedule);
  const bool interleaved = parallel.schedule == PipelineSchedule::interleaved;
  require(stages > 1 || parallel.schedule == PipelineSchedule::one_f_one_b,
          {"parallel.schedule", "parallel.pipeline"}, [&] {
            return fmt::format(
                "parallel.schedule = {} needs parallel.pipeline of 2 or more, not {} (try "
                "parallel.schedule: 1f1b)",
                name, stages);
          });
  require(interleaved || chunks == 1, {"parallel.interleave", "parallel.schedule"}, [&] {
    return fmt::format(
        "parallel.interleave = {} has no effect while parallel.schedule = {} (try "
        "parallel.schedule: interleaved)",
        chunks, name);
  });
  if (!interleaved) return;
  require(chunks > 1, {"parallel.schedule", "parallel.interleave"}, [&] {
    return fmt::format(
        "parallel.schedule = interleaved needs chunks of layers to interleave (try "
        "parallel.interleave: 2)");
  });
  const std::int64_t links = stages * chunks;
  require(deck_.model.layers % links == 0,
          {"parallel.interleave", "parallel.pipeline", "model.layers"}, [&] {
            const std::int64_t layers = deck_.model.layers;
            const bool whole_stages = layers % stages == 0 && layers > stages;
            return fmt::format(
                "parallel.pipeline * parallel.interleave = {} * {} = {} does not divide "
                "model.layers = {} (try {})",
                stages, chunks, links, layers,
                whole_stages ? "parallel.interleave: " +
                                   divisor_list(layers / stages, chunks, /*factor=*/1, /*least=*/2)
                             : fmt::format("model.layers: {}", (layers / links + 1) * links));
          });
  require(
      !parallel.partition, {"parallel.partition", "parallel.schedule"},
      [&] {
        return fmt::format(
            "parallel.partition = {} with parallel.schedule = interleaved, which cuts the layers "
            "into "
            "equal chunks; leave parallel.partition out",
            Codec<std::vector<std::int64_t>>::write(*parallel.partition));
      },
      Suggestion::leave_out_first);
  require(parallel.overlap.pipeline, {"parallel.overlap.pipeline", "parallel.schedule"}, [] {
    return "parallel.overlap.pipeline = false with parallel.schedule = interleaved: stages in a "
           "ring would wait for each other (try parallel.overlap.pipeline: true)";
  });
}

// Sizes of batches, and the length of a run.

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
    require(
        given, {path, "batch.rampup"},
        [path] { return fmt::format("missing key '{}': {}", path, find_key(path)->help); },
        Suggestion::give_key);
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
