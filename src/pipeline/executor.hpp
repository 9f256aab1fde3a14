// Runs a stage's schedule: receives, computes, sends.
#pragma once

#include "comm/communicator.hpp"
#include "device/tensor.hpp"
#include "pipeline/schedule.hpp"

namespace trireme::pipeline {

/// What a stage computes, as the executor sees it.
class StageWork {
 public:
  virtual ~StageWork() = default;

  /// Where the previous stage's activations belong, and the result of forward(). Both stay as they
  /// are until the slot is used again.
  virtual Tensor input(int slot) = 0;
  virtual Tensor output(int slot) = 0;
  /// One of two buffers for gradients of output(); backward() turns its content into the gradient
  /// of input().
  virtual Tensor gradient(int which) = 0;

  virtual void forward(int micro_batch, int slot) = 0;
  virtual void backward(int micro_batch, int slot, const Tensor& gradient) = 0;
};

/// Runs `schedule` to its end. Sends are asynchronous and are waited for before their buffer is
/// used again. Collective over `pipeline`, whose rank r is stage r. Messages of one direction
/// between two stages are matched in order.
void execute(const StageSchedule& schedule, StageWork& work, comm::Communicator& pipeline);

}  // namespace trireme::pipeline
