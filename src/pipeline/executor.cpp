#include "pipeline/executor.hpp"

#include <map>
#include <memory>

#include "comm/routes.hpp"

namespace trireme::pipeline {

using comm::kActivationTag;
using comm::kGradientTag;

namespace {

/// The sends under way, by the buffer they read.
class PendingSends {
 public:
  explicit PendingSends(comm::Communicator& group) : group_(group) {}

  void start(const Tensor& tensor, int peer, int tag) {
    pending_[tensor.data] = group_.send(tensor.data, tensor.bytes(), peer, tag);
  }

  /// Waits until nothing reads `tensor` any more.
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

}  // namespace

void execute(const StageSchedule& schedule, StageWork& work, comm::Communicator& pipeline) {
  PendingSends sends(pipeline);
  const auto receive = [&](const Tensor& tensor, const Step& step, int tag) {
    if (step.receives())
      pipeline.receive(tensor.data, tensor.bytes(), step.receive_from, tag)->wait();
  };
  int backwards = 0;
  for (const Step& step : schedule) {
    if (step.kind == StepKind::forward) {
      const Tensor output = work.output(step.slot);
      sends.finish(output);
      receive(work.input(step.slot), step, kActivationTag);
      work.forward(step.micro_batch, step.slot);
      if (step.sends()) sends.start(output, step.send_to, kActivationTag);
    } else {
      const Tensor gradient = work.gradient(backwards++ % 2);
      sends.finish(gradient);
      receive(gradient, step, kGradientTag);
      work.backward(step.micro_batch, step.slot, gradient);
      if (step.sends()) sends.start(gradient, step.send_to, kGradientTag);
    }
  }
  sends.finish_all();
}

}  // namespace trireme::pipeline
