#include "pipeline/executor.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "comm/communicator.hpp"

namespace trireme::pipeline {

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
