#include <algorithm>

#include "core/error.hpp"
#include "pipeline/schedule_builder.hpp"

namespace trireme::pipeline {

StageSchedule interleaved(int stages, int stage, int chunks, int micro_batches) {
  TRIREME_CHECK(micro_batches % stages == 0, "{} micro-batches interleaved over {} stages",
                micro_batches, stages);
  ScheduleBuilder builder(stages, stage, chunks, micro_batches);
  const std::vector<Passage> order = forward_order(stages, chunks, micro_batches);
  const std::size_t steps = order.size();
  // The last stage begins its first backward when the first group has passed all chunks but one; a
  // stage before it fills the time of the way there and back.
  const std::size_t warmup =
      std::min<std::size_t>(2 * (stages - stage - 1) + (chunks - 1) * stages, steps);
  for (std::size_t k = 0; k < warmup; ++k) builder.forward(order[k]);
  for (std::size_t k = 0; k < steps; ++k) {
    if (warmup + k < steps) builder.forward(order[warmup + k]);
    builder.backward({order[k].micro_batch, chunks - 1 - order[k].chunk});
  }
  return builder.take();
}

}  // namespace trireme::pipeline
