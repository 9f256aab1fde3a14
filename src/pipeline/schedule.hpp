// Pipeline schedules as data: the steps of each stage, in order, and the stages that each step
// exchanges tensors with. Pure functions make schedules, the simulator checks them, one executor
// runs them.
#pragma once

#include <string>
#include <vector>

#include "deck/choices.hpp"

namespace trireme::pipeline {

/// What a step computes. A backward runs whole, or in two steps: the gradient of the input, which
/// the previous stage waits for, and later that of the weights, which no stage waits for.
enum class StepKind { forward, backward, input_gradient, weight_gradient };

/// No stage: the step receives or sends nothing.
inline constexpr int kNoStage = -1;

/// One micro-batch's forward or backward through one chunk of a stage's layers. A forward receives
/// activations and sends activations; a backward or input gradient receives the gradient of what
/// its forward sent and sends the gradient of what its forward received.
struct Step {
  StepKind kind = StepKind::forward;
  int micro_batch = 0;
  /// Which of the stage's model chunks; chunk c of stage s among p stages is virtual stage c * p +
  /// s of the pipeline.
  int chunk = 0;
  /// Which of the stage's activation slots holds the micro-batch from its forward to the end of its
  /// backward.
  int slot = 0;
  int receive_from = kNoStage;  ///< stage whose message the step waits for before it computes
  int send_to = kNoStage;       ///< stage that gets the step's result

  bool receives() const { return receive_from != kNoStage; }
  bool sends() const { return send_to != kNoStage; }
  /// Whether it turns the gradient of its chunk's output into that of the input.
  bool passes_gradient() const {
    return kind == StepKind::backward || kind == StepKind::input_gradient;
  }
  bool operator==(const Step&) const = default;
};

/// The steps of one stage, in the order in which it runs them.
using StageSchedule = std::vector<Step>;

/// "forward of micro-batch 3", with the chunk when it is not 0.
std::string to_string(const Step& step);

/// Number of activation slots that the steps use.
int count_slots(const StageSchedule& schedule);

/// 1F1B of one stage: forwards until the pipeline is full, then one forward and one backward in
/// turn, then the remaining backwards. Throws InternalError unless 0 <= stage < stages and
/// micro_batches >= 1, as all that follow.
/// Source: Narayanan et al., "Memory-efficient pipeline-parallel DNN training" (ICML 2021).
StageSchedule one_f_one_b(int stages, int stage, int micro_batches);

/// Interleaved 1F1B: each stage has `chunks` model chunks, so that the pipeline fills and drains in
/// smaller steps. `micro_batches` must be a multiple of `stages`.
/// Source: Narayanan et al., "Efficient large-scale language model training on GPU clusters using
/// Megatron-LM" (SC 2021), section 2.2.
StageSchedule interleaved(int stages, int stage, int chunks, int micro_batches);

/// ZB-H1: 1F1B whose weight gradients are deferred, on stage r by r micro-batches, into the time
/// that the stage would idle while the pipeline drains. No stage holds more micro-batches than the
/// first does under 1F1B.
/// Source: Qi et al., "Zero bubble pipeline parallelism" (2023), section 2.
StageSchedule zero_bubble(int stages, int stage, int micro_batches);

/// Forwards only, for evaluation, through `chunks` chunks per stage: the n-th step uses slot n
/// modulo `slots`. Any number of micro-batches.
StageSchedule forward_only(int stages, int stage, int chunks, int micro_batches, int slots);

/// The schedules that training can use.
using ScheduleKind = deck::PipelineSchedule;

/// The shape of the pipeline that a training schedule is made for.
struct PipelineShape {
  ScheduleKind kind = ScheduleKind::one_f_one_b;
  int stages = 1;
  int chunks = 1;  ///< model chunks on each stage; 1 unless interleaved
  int micro_batches = 1;
};

/// The schedule of one stage.
StageSchedule make_schedule(const PipelineShape& shape, int stage);
/// The schedules of all stages.
std::vector<StageSchedule> make_schedules(const PipelineShape& shape);

}  // namespace trireme::pipeline
