#include "pipeline/schedule_builder.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace trireme::pipeline {

std::vector<Passage> forward_order(int stages, int chunks, int micro_batches) {
  std::vector<Passage> order;
  for (int first = 0; first < micro_batches; first += stages)
    for (int chunk = 0; chunk < chunks; ++chunk)
      for (int m = first; m < std::min(first + stages, micro_batches); ++m)
        order.push_back({m, chunk});
  return order;
}

ScheduleBuilder::ScheduleBuilder(int stages, int stage, int chunks, int micro_batches)
    : stages_(stages), stage_(stage), chunks_(chunks) {
  TRIREME_CHECK(stage >= 0 && stage < stages, "stage {} of {}", stage, stages);
  TRIREME_CHECK(chunks >= 1, "{} chunks", chunks);
  TRIREME_CHECK(micro_batches >= 1, "{} micro-batches", micro_batches);
}

void ScheduleBuilder::forward(const Passage& passage) {
  // A slot more than there are in use is there when it is needed.
  if (free_.empty()) free_.insert(static_cast<int>(slots_.size()));
  forward_in(*free_.begin(), passage);
}

void ScheduleBuilder::forward_in(int slot, const Passage& passage) {
  free_.erase(slot);
  slots_[passage] = slot;
  append(StepKind::forward, passage);
}

void ScheduleBuilder::end(StepKind kind, const Passage& passage) {
  append(kind, passage);
  free_.insert(slots_.at(passage));
  slots_.erase(passage);
}

void ScheduleBuilder::append(StepKind kind, const Passage& passage) {
  Step step{.kind = kind,
            .micro_batch = passage.micro_batch,
            .chunk = passage.chunk,
            .slot = slots_.at(passage)};
  const int link = passage.chunk * stages_ + stage_;
  const int previous = link > 0 ? (link - 1) % stages_ : kNoStage;
  const int next = link + 1 < stages_ * chunks_ ? (link + 1) % stages_ : kNoStage;
  if (kind == StepKind::forward) {
    step.receive_from = previous;
    step.send_to = next;
  } else if (kind != StepKind::weight_gradient) {
    step.receive_from = next;
    step.send_to = previous;
  }
  steps_.push_back(step);
}

}  // namespace trireme::pipeline
