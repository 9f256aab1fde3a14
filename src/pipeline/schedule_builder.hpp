// What the functions that make schedules share.
#pragma once

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "pipeline/schedule.hpp"

namespace trireme::pipeline {

/// A micro-batch on its way through one chunk.
struct Passage {
  int micro_batch = 0;
  int chunk = 0;
  auto operator<=>(const Passage&) const = default;
};

/// The order in which every stage takes forwards: micro-batches in groups of `stages`, the last of
/// which may be smaller, each group through one chunk after the other.
std::vector<Passage> forward_order(int stages, int chunks, int micro_batches);

/// Writes down the steps of one stage: finds whom each exchanges with, and gives each forward the
/// lowest slot that is free.
class ScheduleBuilder {
 public:
  /// Throws InternalError unless there are such a stage, a chunk and a micro-batch.
  ScheduleBuilder(int stages, int stage, int chunks, int micro_batches);

  /// Adds the step that takes `passage` forward, and below the one that takes it backward: whole,
  /// or its input gradient and, later, its weight gradient, which frees the slot. Those throw
  /// std::out_of_range for a passage that did not go forward.
  void forward(const Passage& passage);
  void backward(const Passage& passage) { end(StepKind::backward, passage); }
  void input_gradient(const Passage& passage) { append(StepKind::input_gradient, passage); }
  void weight_gradient(const Passage& passage) { end(StepKind::weight_gradient, passage); }

  /// forward() in a slot of the caller's choice.
  void forward_in(int slot, const Passage& passage);

  /// The steps so far, which leave the builder.
  StageSchedule take() { return std::move(steps_); }

 private:
  void append(StepKind kind, const Passage& passage);
  /// The last step of a passage: its slot is free again.
  void end(StepKind kind, const Passage& passage);

  int stages_, stage_, chunks_;
  StageSchedule steps_;
  std::map<Passage, int> slots_;
  std::set<int> free_;
};

}  // namespace trireme::pipeline
