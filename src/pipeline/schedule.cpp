#include "pipeline/schedule.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "pipeline/schedule_builder.hpp"

namespace trireme::pipeline {
namespace {

const char* name_of(StepKind kind) {
  switch (kind) {
    case StepKind::forward:
      return "forward";
    case StepKind::backward:
      return "backward";
    case StepKind::input_gradient:
      return "input gradient";
    case StepKind::weight_gradient:
      return "weight gradient";
  }
  throw InternalError("unknown step {}", static_cast<int>(kind));
}

}  // namespace

std::string to_string(const Step& step) {
  const std::string text =
      fmt::format("{} of micro-batch {}", name_of(step.kind), step.micro_batch);
  return step.chunk == 0 ? text : fmt::format("{} in chunk {}", text, step.chunk);
}

int count_slots(const StageSchedule& schedule) {
  int slots = 0;
  for (const Step& step : schedule) slots = std::max(slots, step.slot + 1);
  return slots;
}

StageSchedule forward_only(int stages, int stage, int chunks, int micro_batches, int slots) {
  TRIREME_CHECK(slots >= 1, "{} activation slots", slots);
  ScheduleBuilder builder(stages, stage, chunks, micro_batches);
  int step = 0;
  for (const Passage& passage : forward_order(stages, chunks, micro_batches))
    builder.forward_in(step++ % slots, passage);
  return builder.take();
}

StageSchedule make_schedule(const PipelineShape& shape, int stage) {
  TRIREME_CHECK(shape.chunks == 1 || shape.kind == ScheduleKind::interleaved,
                "{} chunks in a schedule that does not interleave", shape.chunks);
  switch (shape.kind) {
    case ScheduleKind::one_f_one_b:
      return one_f_one_b(shape.stages, stage, shape.micro_batches);
    case ScheduleKind::interleaved:
      return interleaved(shape.stages, stage, shape.chunks, shape.micro_batches);
    case ScheduleKind::zero_bubble:
      return zero_bubble(shape.stages, stage, shape.micro_batches);
  }
  throw InternalError("unknown schedule {}", static_cast<int>(shape.kind));
}

std::vector<StageSchedule> make_schedules(const PipelineShape& shape) {
  std::vector<StageSchedule> schedules;
  for (int stage = 0; stage < shape.stages; ++stage)
    schedules.push_back(make_schedule(shape, stage));
  return schedules;
}

}  // namespace trireme::pipeline
