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

  /// Where the previous link's activations belong, and the result of forward(). Until backward() of
  /// the slot nobody else writes to the output; nor, from its receive to the end of forward() and
  /// in backward(), to the input, which slots may share: then forward() keeps it elsewhere, and
  /// backward() writes to its own slot's. weight_gradient() leaves the input alone.
  virtual Tensor input(int slot) = 0;
  virtual Tensor output(int slot) = 0;
  /// One of two buffers for gradients of output(); backward() turns its content into the gradient
  /// of input().
  virtual Tensor gradient(int which) = 0;

  /// Carries out a step of kind forward: writes output(step.slot) from what input() received. As
  /// the two below collective over the ranks that share the stage.
  virtual void forward(const Step& step) = 0;
  /// For steps of kind backward; and input_gradient, which leave the rest to weight_gradient().
  /// Turns `gradient`, one of gradient(), in place into that of the input; adds to the weights'.
  virtual void backward(const Step& step, const Tensor& gradient) = 0;
  /// For steps of kind weight_gradient: adds what backward() left to the weights' gradients.
  virtual void weight_gradient(const Step& step) = 0;
};

/// Runs `schedule` to its end. Collective over `pipeline`, whose rank r is stage r. Messages of one
/// direction between two stages are matched in order. With `overlap`, messages travel while stages
/// compute: a send is waited for before its buffer is used again, and the receive of the next step
/// is under way beside the present one unless that still uses the buffer. Without, every message is
/// waited for between two steps.
void execute(const StageSchedule& schedule, StageWork& work, comm::Communicator& pipeline,
             bool overlap = true);

}  // namespace trireme::pipeline
