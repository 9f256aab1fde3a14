#include <algorithm>

#include "pipeline/schedule_builder.hpp"

namespace trireme::pipeline {

StageSchedule one_f_one_b(int stages, int stage, int micro_batches) {
  ScheduleBuilder builder(stages, stage, /*chunks=*/1, micro_batches);
  const int warmup = std::min(stages - stage - 1, micro_batches);
  for (int m = 0; m < warmup; ++m) builder.forward({m});
  for (int m = 0; m < micro_batches; ++m) {
    if (warmup + m < micro_batches) builder.forward({warmup + m});
    builder.backward({m});
  }
  return builder.take();
}

}  // namespace trireme::pipeline
