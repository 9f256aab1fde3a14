// Pipeline schedules as data: the steps of each stage, in order, and the stages that each step
// exchanges tensors with. Pure functions make schedules, the simulator checks them, one executor
// runs them.
#pragma once

#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "core/tensor.hpp"
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

// ---- simulates a pipeline schedule: checks that it is complete and free of deadlocks, times it
// and counts the activations that it keeps

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

// ---- runs a stage's schedule: receives, computes, sends

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
