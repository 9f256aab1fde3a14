// Pipeline schedules as data: what each stage does, in order, and with whom it exchanges tensors.
// Pure functions make schedules, the simulator proves them, one executor runs them.
#pragma once

#include <string>
#include <vector>

namespace trireme::pipeline {

enum class StepKind { forward, backward };

/// "no stage": this step receives or sends nothing.
inline constexpr int kNoStage = -1;

/// One micro-batch's forward or backward through one chunk of a stage's layers. A forward receives
/// activations and sends activations; a backward receives the gradient of what its forward sent and
/// sends the gradient of what its forward received.
struct Step {
  StepKind kind = StepKind::forward;
  int micro_batch = 0;
  /// Which of the stage's pieces of the model; chunk c of stage s among p stages is link c * p + s
  /// of the chain that a micro-batch passes.
  int chunk = 0;
  /// Which of the stage's activation slots holds the micro-batch from its forward to its backward.
  int slot = 0;
  int receive_from = kNoStage;  ///< stage whose message the step waits for before it computes
  int send_to = kNoStage;       ///< stage that gets the step's result

  bool receives() const { return receive_from != kNoStage; }
  bool sends() const { return send_to != kNoStage; }
  bool operator==(const Step&) const = default;
};

/// The steps of one stage, in the order in which it runs them.
using StageSchedule = std::vector<Step>;

/// "forward of micro-batch 3", with the chunk when it is not 0.
std::string to_string(const Step& step);

/// Number of activation slots that a stage needs under 1F1B: min(stages - stage, micro_batches).
int one_f_one_b_slots(int stages, int stage, int micro_batches);

/// 1F1B of one stage: forwards until the pipeline is full, then one forward and one backward in
/// turn, then the remaining backwards. Micro-batch m lives in slot m modulo the number of slots.
/// Throws InternalError unless 0 <= stage < stages and micro_batches >= 1.
/// Source: Narayanan et al., "Memory-efficient pipeline-parallel DNN training" (ICML 2021).
StageSchedule one_f_one_b(int stages, int stage, int micro_batches);

/// Forwards alone, for evaluation: micro-batch m lives in slot m modulo `slots`.
/// Throws InternalError unless 0 <= stage < stages, micro_batches >= 1 and slots >= 1.
StageSchedule forward_only(int stages, int stage, int micro_batches, int slots);

}  // namespace trireme::pipeline
