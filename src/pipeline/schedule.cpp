#include "pipeline/schedule.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "comm/communicator.hpp"
#include "core/error.hpp"

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

/// The pass of one micro-batch through one chunk.
struct ChunkPass {
  int micro_batch = 0;
  int chunk = 0;
  auto operator<=>(const ChunkPass&) const = default;
};

/// The order of forwards on every stage: micro-batches in groups of `stages`, the last of which may
/// be smaller, each group through one chunk after the other.
std::vector<ChunkPass> forward_order(int stages, int chunks, int micro_batches) {
  std::vector<ChunkPass> order;
  for (int first = 0; first < micro_batches; first += stages)
    for (int chunk = 0; chunk < chunks; ++chunk)
      for (int m = first; m < std::min(first + stages, micro_batches); ++m)
        order.push_back({m, chunk});
  return order;
}

/// Collects the steps of one stage: finds the stages that each exchanges with, and gives each
/// forward the lowest free slot.
class ScheduleBuilder {
 public:
  /// Throws InternalError unless there are such a stage, a chunk and a micro-batch.
  ScheduleBuilder(int stages, int stage, int chunks, int micro_batches)
      : stages_(stages), stage_(stage), chunks_(chunks) {
    TRIREME_CHECK(stage >= 0 && stage < stages, "stage {} of {}", stage, stages);
    TRIREME_CHECK(chunks >= 1, "{} chunks", chunks);
    TRIREME_CHECK(micro_batches >= 1, "{} micro-batches", micro_batches);
  }

  void forward(const ChunkPass& pass) {
    // All slots in use: the next number becomes a slot.
    if (free_.empty()) free_.insert(static_cast<int>(slots_.size()));
    forward_in(*free_.begin(), pass);
  }
  /// forward() in a slot that the caller chooses.
  void forward_in(int slot, const ChunkPass& pass) {
    free_.erase(slot);
    slots_[pass] = slot;
    append(StepKind::forward, pass);
  }

  /// The backward of `pass`: whole, or its input gradient and later its weight gradient, which
  /// frees the slot. Throw std::out_of_range without an earlier forward of `pass`.
  void backward(const ChunkPass& pass) { end(StepKind::backward, pass); }
  void input_gradient(const ChunkPass& pass) { append(StepKind::input_gradient, pass); }
  void weight_gradient(const ChunkPass& pass) { end(StepKind::weight_gradient, pass); }

  StageSchedule take() { return std::move(steps_); }

 private:
  /// Appends the last step of `pass`, which frees its slot.
  void end(StepKind kind, const ChunkPass& pass) {
    append(kind, pass);
    free_.insert(slots_.at(pass));
    slots_.erase(pass);
  }

  void append(StepKind kind, const ChunkPass& pass) {
    Step step{.kind = kind,
              .micro_batch = pass.micro_batch,
              .chunk = pass.chunk,
              .slot = slots_.at(pass)};
    const int virtual_stage = pass.chunk * stages_ + stage_;
    const int previous = virtual_stage > 0 ? (virtual_stage - 1) % stages_ : kNoStage;
    const int next =
        virtual_stage + 1 < stages_ * chunks_ ? (virtual_stage + 1) % stages_ : kNoStage;
    if (kind == StepKind::forward) {
      step.receive_from = previous;
      step.send_to = next;
    } else if (kind != StepKind::weight_gradient) {
      step.receive_from = next;
      step.send_to = previous;
    }
    steps_.push_back(step);
  }

  int stages_, stage_, chunks_;
  StageSchedule steps_;
  std::map<ChunkPass, int> slots_;
  std::set<int> free_;
};

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

// ---- the schedules

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

StageSchedule interleaved(int stages, int stage, int chunks, int micro_batches) {
  TRIREME_CHECK(micro_batches % stages == 0, "{} micro-batches interleaved over {} stages",
                micro_batches, stages);
  ScheduleBuilder builder(stages, stage, chunks, micro_batches);
  const std::vector<ChunkPass> order = forward_order(stages, chunks, micro_batches);
  const std::size_t steps = order.size();
  // The last stage begins its first backward when the first group has passed all chunks but one. An
  // earlier stage runs more forwards in advance: two for each stage between, which cover the trip
  // of an activation to the last stage and of its gradient back.
  const std::size_t warmup =
      std::min<std::size_t>(2 * (stages - stage - 1) + (chunks - 1) * stages, steps);
  for (std::size_t k = 0; k < warmup; ++k) builder.forward(order[k]);
  for (std::size_t k = 0; k < steps; ++k) {
    if (warmup + k < steps) builder.forward(order[warmup + k]);
    builder.backward({order[k].micro_batch, chunks - 1 - order[k].chunk});
  }
  return builder.take();
}

StageSchedule zero_bubble(int stages, int stage, int micro_batches) {
  ScheduleBuilder builder(stages, stage, /*chunks=*/1, micro_batches);
  const int warmup = std::min(stages - stage - 1, micro_batches);
  // Stage r runs r forwards fewer in advance than the first stage does, and may hold r
  // micro-batches more whose weight gradients are deferred.
  const int deferred = stage;
  for (int m = 0; m < warmup; ++m) builder.forward({m});
  for (int m = 0; m < micro_batches; ++m) {
    if (warmup + m < micro_batches) builder.forward({warmup + m});
    builder.input_gradient({m});
    if (m >= deferred) builder.weight_gradient({m - deferred});
  }
  for (int m = std::max(micro_batches - deferred, 0); m < micro_batches; ++m)
    builder.weight_gradient({m});
  return builder.take();
}

StageSchedule forward_only(int stages, int stage, int chunks, int micro_batches, int slots) {
  TRIREME_CHECK(slots >= 1, "{} activation slots", slots);
  ScheduleBuilder builder(stages, stage, chunks, micro_batches);
  int step = 0;
  for (const ChunkPass& pass : forward_order(stages, chunks, micro_batches))
    builder.forward_in(step++ % slots, pass);
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

// ---- the executor

using comm::kActivationTag;
using comm::kGradientTag;

namespace {

/// The sends that have not completed, by the buffer that they read.
class PendingSends {
 public:
  explicit PendingSends(comm::Communicator& group) : group_(group) {}

  void start(const Tensor& tensor, int peer, int tag) {
    pending_[tensor.data] = group_.send(tensor.data, tensor.bytes(), peer, tag);
  }

  /// Waits for the send that reads `tensor`, if any.
  void finish(const Tensor& tensor) {
    const auto found = pending_.find(tensor.data);
    if (found == pending_.end()) return;
    found->second->wait();
    pending_.erase(found);
  }

  void finish_all() {
    for (auto& [data, request] : pending_) request->wait();
    pending_.clear();
  }

 private:
  comm::Communicator& group_;
  std::map<const void*, std::unique_ptr<comm::Request>> pending_;
};

/// The execution of one schedule.
class Execution {
 public:
  Execution(const StageSchedule& schedule, StageWork& work, comm::Communicator& pipeline)
      : schedule_(schedule), work_(work), pipeline_(pipeline), sends_(pipeline) {
    int gradients = 0;
    for (const Step& step : schedule)
      which_.push_back(step.passes_gradient() ? gradients++ % 2 : 0);
    first_gradient_ = std::ranges::find_if(schedule, &Step::passes_gradient) - schedule.begin();
  }

  void run(bool overlap) {
    for (std::size_t i = 0; i < schedule_.size(); ++i) {
      if (!arriving_) start_receive(i);
      if (arriving_) arriving_->wait();
      arriving_.reset();
      if (overlap && may_overlap_next_receive(i)) start_receive(i + 1);
      compute(i);
      if (overlap) continue;
      // Receive and send at the same time: two stages that send to each other would deadlock.
      start_receive(i + 1);
      sends_.finish_all();
    }
    sends_.finish_all();
  }

 private:
  /// Whether step `i` + 1 may receive while step `i` computes: not into memory that step `i` uses,
  /// and not the first gradient. That one may depend on the message that step `i` is about to send,
  /// and during the first passes CUDA synchronizes the device, posted receives included: when
  /// memory is freed after GEMMs were timed, and when kernels are loaded.
  bool may_overlap_next_receive(std::size_t i) const {
    if (i + 1 == schedule_.size() || i + 1 == first_gradient_) return false;
    const Step &current = schedule_[i], &next = schedule_[i + 1];
    return next.kind != StepKind::forward || current.kind == StepKind::weight_gradient ||
           work_.input(next.slot).data != work_.input(current.slot).data;
  }

  /// Starts the receive of step `i` if there is one.
  void start_receive(std::size_t i) {
    if (i == schedule_.size() || !schedule_[i].receives()) return;
    const Step& step = schedule_[i];
    const bool forward = step.kind == StepKind::forward;
    const Tensor into = forward ? work_.input(step.slot) : work_.gradient(which_[i]);
    sends_.finish(into);
    arriving_ = pipeline_.receive(into.data, into.bytes(), step.receive_from,
                                  forward ? kActivationTag : kGradientTag);
  }

  void compute(std::size_t i) {
    const Step& step = schedule_[i];
    if (step.kind == StepKind::weight_gradient) return work_.weight_gradient(step);
    const Tensor output = work_.output(step.slot);
    sends_.finish(output);
    if (step.kind == StepKind::forward) {
      work_.forward(step);
      if (step.sends()) sends_.start(output, step.send_to, kActivationTag);
    } else {
      const Tensor gradient = work_.gradient(which_[i]);
      sends_.finish(gradient);
      work_.backward(step, gradient);
      if (step.sends()) sends_.start(gradient, step.send_to, kGradientTag);
    }
  }

  const StageSchedule& schedule_;
  StageWork& work_;
  comm::Communicator& pipeline_;
  PendingSends sends_;
  std::vector<int> which_;                   ///< gradient buffer of each step that passes one
  std::size_t first_gradient_;               ///< the first step that passes one
  std::unique_ptr<comm::Request> arriving_;  ///< what the next step waits for
};

}  // namespace

void execute(const StageSchedule& schedule, StageWork& work, comm::Communicator& pipeline,
             bool overlap) {
  Execution(schedule, work, pipeline).run(overlap);
}

}  // namespace trireme::pipeline
