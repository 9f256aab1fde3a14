// Model, layout and pipeline.
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

}  // namespace trireme::deck
