// Simulates a pipeline schedule: checks that it is complete and free of deadlocks, times it and
// counts the activations that it keeps.
#pragma once

#include <vector>

#include "pipeline/schedule.hpp"

namespace trireme::pipeline {

/// Times of one step, in any unit. A transfer delays the receiver only.
struct StepCosts {
  double forward = 1;
  double backward = 1;        ///< of both gradients together
  double transfer = 0;        ///< of a message to or from the next virtual stage
  double weight_share = 0.5;  ///< the weight gradient's share of `backward`
};

/// When the next step may follow a step that sends. Receives always block; messages between two
/// stages arrive in the order in which they were sent, activations and gradients separately.
enum class SendRule {
  buffered,  ///< immediately: any number of messages may be in flight
  /// When the previous message of the same kind to the same stage was received.
  one_in_flight,
  /// When no send reads the buffers that the next step writes, and that the step after it receives
  /// into: the executor with overlap.
  overlapped,
  /// When its own message was received and that of the next step arrived; the stage waits for both
  /// at the same time: the executor without overlap.
  exchanged,
  synchronous,  ///< when its own message was received
};

/// Start and end of a step's computation.
struct StepTime {
  double start = 0;
  double end = 0;
};

/// The result of a simulation; the outer vectors are indexed by stage.
struct Simulation {
  std::vector<std::vector<StepTime>> times;  ///< parallel to the schedule's steps
  std::vector<int> peak_activations;         ///< largest number of micro-batches kept at a time
  double makespan = 0;                       ///< when the last step ends
  double bubble = 0;  ///< share of the stages' time in which they are idle, 0 to 1
};

/// Simulates `schedule` (one list per stage). Throws InternalError that names the stage and the
/// step unless all of this holds: each of `micro_batches` micro-batches goes forward once and then
/// backward once, whole or in its two steps, through every chunk of every stage; messages pass
/// between adjacent virtual stages only; each receive matches the message of its micro-batch;
/// no slot is used twice at a time; no step deadlocks under `rule`.
Simulation simulate(const std::vector<StageSchedule>& schedule, int micro_batches,
                    const StepCosts& costs = {}, SendRule rule = SendRule::buffered);

/// The same where virtual stages differ: `costs` has one entry for each, chunk c of stage s among p
/// stages at c * p + s.
Simulation simulate_stages(const std::vector<StageSchedule>& schedule, int micro_batches,
                           const std::vector<StepCosts>& costs, SendRule rule = SendRule::buffered);

/// When each stage ends, without the checks that do not depend on time: for a planner that times
/// many costs on one schedule of make_schedules().
std::vector<double> stage_ends(const std::vector<StageSchedule>& schedule,
                               const std::vector<StepCosts>& costs,
                               SendRule rule = SendRule::buffered);

}  // namespace trireme::pipeline
