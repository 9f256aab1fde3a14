// Runs a stage's schedule: receives, computes, sends.
#pragma once

#include "comm/communicator.hpp"
#include "core/tensor.hpp"
#include "pipeline/schedule.hpp"

namespace trireme::pipeline {

/// What a stage computes, as the executor sees it.
class StageWork {
 public:
  virtual ~StageWork() = default;

  /// Where activations of the previous virtual stage are received, and the result of forward(). The
  /// output is not written again until backward() of the slot. Slots may share an input: it is not
  /// written between its receive and the end of forward(), which keeps a copy, nor during
  /// backward(). weight_gradient() neither reads nor writes it.
  virtual Tensor input(int slot) = 0;
  virtual Tensor output(int slot) = 0;
  /// One of two buffers for gradients of output(); backward() turns its content into the gradient
  /// of input().
  virtual Tensor gradient(int which) = 0;

  /// A step of kind forward: writes output(step.slot) from what input() received. As the two below
  /// collective over the ranks that share the stage.
  virtual void forward(const Step& step) = 0;
  /// A step of kind backward, or of kind input_gradient, which leaves the weights' gradients to
  /// weight_gradient(). Turns `gradient`, one of gradient(), in place into that of the input; adds
  /// to the weights' gradients.
  virtual void backward(const Step& step, const Tensor& gradient) = 0;
  /// A step of kind weight_gradient: adds the gradients that backward() left out.
  virtual void weight_gradient(const Step& step) = 0;
};

/// Runs all steps of `schedule`. Collective over `pipeline`, whose rank r is stage r. Messages of
/// one direction between two stages are matched in order. With `overlap`, messages travel while
/// stages compute: a send is waited for before its buffer is used again, and the receive of the
/// next step overlaps with the current one unless that still uses the buffer. Without, all messages
/// complete between two steps.
void execute(const StageSchedule& schedule, StageWork& work, comm::Communicator& pipeline,
             bool overlap = true);

}  // namespace trireme::pipeline
