#include <algorithm>

#include "pipeline/schedule_builder.hpp"

namespace trireme::pipeline {

StageSchedule zero_bubble(int stages, int stage, int micro_batches) {
  ScheduleBuilder builder(stages, stage, /*chunks=*/1, micro_batches);
  const int warmup = std::min(stages - stage - 1, micro_batches);
  // Stage r has r forwards less to do in advance than the first, and may hold r micro-batches more
  // that wait for their weight gradients.
  const int put_off = stage;
  for (int m = 0; m < warmup; ++m) builder.forward({m});
  for (int m = 0; m < micro_batches; ++m) {
    if (warmup + m < micro_batches) builder.forward({warmup + m});
    builder.input_gradient({m});
    if (m >= put_off) builder.weight_gradient({m - put_off});
  }
  for (int m = std::max(micro_batches - put_off, 0); m < micro_batches; ++m)
    builder.weight_gradient({m});
  return builder.take();
}

}  // namespace trireme::pipeline
