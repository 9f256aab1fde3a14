#include "pipeline/schedule.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace trireme::pipeline {
namespace {

/// A forward receives from the previous stage and sends to the next, a backward the other way.
Step make_step(StepKind kind, int stages, int stage, int micro_batch, int slots) {
  const int previous = stage > 0 ? stage - 1 : kNoStage;
  const int next = stage + 1 < stages ? stage + 1 : kNoStage;
  const bool forward = kind == StepKind::forward;
  return {.kind = kind,
          .micro_batch = micro_batch,
          .slot = micro_batch % slots,
          .receive_from = forward ? previous : next,
          .send_to = forward ? next : previous};
}

void check_stage(int stages, int stage, int micro_batches) {
  TRIREME_CHECK(stage >= 0 && stage < stages, "stage {} of {}", stage, stages);
  TRIREME_CHECK(micro_batches >= 1, "{} micro-batches", micro_batches);
}

}  // namespace

std::string to_string(const Step& step) {
  const char* kind = step.kind == StepKind::forward ? "forward" : "backward";
  const std::string text = fmt::format("{} of micro-batch {}", kind, step.micro_batch);
  return step.chunk == 0 ? text : fmt::format("{} in chunk {}", text, step.chunk);
}

int one_f_one_b_slots(int stages, int stage, int micro_batches) {
  check_stage(stages, stage, micro_batches);
  return std::min(stages - stage, micro_batches);
}

StageSchedule one_f_one_b(int stages, int stage, int micro_batches) {
  const int slots = one_f_one_b_slots(stages, stage, micro_batches);
  const int warmup = std::min(stages - stage - 1, micro_batches);
  StageSchedule schedule;
  const auto append = [&](StepKind kind, int micro_batch) {
    schedule.push_back(make_step(kind, stages, stage, micro_batch, slots));
  };
  for (int m = 0; m < warmup; ++m) append(StepKind::forward, m);
  for (int m = warmup; m < micro_batches; ++m) {
    append(StepKind::forward, m);
    append(StepKind::backward, m - warmup);
  }
  for (int m = micro_batches - warmup; m < micro_batches; ++m) append(StepKind::backward, m);
  return schedule;
}

StageSchedule forward_only(int stages, int stage, int micro_batches, int slots) {
  check_stage(stages, stage, micro_batches);
  TRIREME_CHECK(slots >= 1, "{} activation slots", slots);
  StageSchedule schedule;
  for (int m = 0; m < micro_batches; ++m)
    schedule.push_back(make_step(StepKind::forward, stages, stage, m, slots));
  return schedule;
}

}  // namespace trireme::pipeline
