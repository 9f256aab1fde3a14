// Runs a pipeline schedule on paper: proves it complete and deadlock-free, times it and counts the
// activations it keeps alive.
#pragma once

#include <vector>

#include "pipeline/schedule.hpp"

namespace trireme::pipeline {

/// Time of one step's parts, in any one unit. A transfer delays its receiver and costs its sender
/// nothing.
struct StepCosts {
  double forward = 1;
  double backward = 1;  ///< of both gradients together
  double transfer = 0;
  double weight_share = 0.5;  ///< of `backward`: the weight gradient
};

/// When a step that sends may go on. Receives always block; messages between two stages arrive in
/// the order in which they were sent, activations and gradients apart.
enum class SendRule {
  buffered,  ///< at once: any number of messages may be on their way
  /// Once the stage's previous message of the same kind to the same stage has been received.
  one_in_flight,
  /// Once nothing reads the buffers that the next step computes in, and the one after it receives
  /// into: what the executor does with overlap.
  overlapped,
  /// Once its own message has been received, and that of the next step has arrived, for which the
  /// stage waits at the same time: what the executor does without overlap.
  exchanged,
  synchronous,  ///< once its own message has been received
};

/// Start and end of a step's computation.
struct StepTime {
  double start = 0;
  double end = 0;
};

/// What the simulation found; the outer vectors are indexed by stage.
struct Simulation {
  std::vector<std::vector<StepTime>> times;  ///< parallel to the schedule's steps
  std::vector<int> peak_activations;         ///< micro-batches alive at once, at most
  double makespan = 0;                       ///< when the last step ends
  double bubble = 0;  ///< share of the stages' time in which they compute nothing, 0 to 1
};

/// Simulates `schedule` (one list per stage). Throws InternalError that names the stage and the
/// step unless all of this holds: each of `micro_batches` micro-batches goes forward once and then
/// backward once, whole or in its two steps, through every chunk of every stage; messages pass
/// between neighbours of the chain only; each receive meets the message of its own micro-batch; no
/// slot is taken twice; no step waits for ever under `rule`.
Simulation simulate(const std::vector<StageSchedule>& schedule, int micro_batches,
                    const StepCosts& costs = {}, SendRule rule = SendRule::buffered);

}  // namespace trireme::pipeline
