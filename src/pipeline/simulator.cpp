#include "pipeline/schedule.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <map>
#include <utility>

#include "core/error.hpp"

namespace trireme::pipeline {
namespace {

[[noreturn]] void fail(int stage, int index, const Step& step, const std::string& what) {
  throw InternalError("pipeline schedule: stage {}, step {} ({}) {}", stage, index, to_string(step),
                      what);
}

std::string stage_name(int stage) {
  return stage == kNoStage ? "no stage" : fmt::format("stage {}", stage);
}

/// The virtual stages of the pipeline: chunk c of stage s is number c * stages + s.
struct VirtualStages {
  int stages;
  int chunks;

  int index(int stage, int chunk) const { return chunk * stages + stage; }
  /// The stage of virtual stage `index`, kNoStage past either end.
  int stage_of(int index) const {
    return index >= 0 && index < stages * chunks ? index % stages : kNoStage;
  }
};

/// Checks one stage's list alone: peers, slots, order and completeness. Returns the largest number
/// of micro-batches that it keeps at a time.
int check_stage(const StageSchedule& steps, int stage, int micro_batches,
                const VirtualStages& pipeline) {
  enum class Progress { none, forward, input_gradient, backward };
  std::map<std::pair<int, int>, Progress> progress;  // by micro-batch and chunk
  std::map<int, const Step*> slots;                  // the forward that took each slot
  std::size_t peak = 0;
  for (int i = 0; i < static_cast<int>(steps.size()); ++i) {
    const Step& step = steps[i];
    const bool forward = step.kind == StepKind::forward;
    if (step.micro_batch < 0 || step.micro_batch >= micro_batches)
      fail(stage, i, step, fmt::format("is not one of {} micro-batches", micro_batches));
    if (step.chunk < 0) fail(stage, i, step, "has no chunk");

    const int index = pipeline.index(stage, step.chunk);
    const bool alone = step.kind == StepKind::weight_gradient;
    const int before = alone ? kNoStage : pipeline.stage_of(forward ? index - 1 : index + 1);
    const int after = alone ? kNoStage : pipeline.stage_of(forward ? index + 1 : index - 1);
    if (step.receive_from != before)
      fail(stage, i, step,
           fmt::format("receives from {}, not from {}", stage_name(step.receive_from),
                       stage_name(before)));
    if (step.send_to != after)
      fail(stage, i, step,
           fmt::format("sends to {}, not to {}", stage_name(step.send_to), stage_name(after)));

    Progress& done = progress[{step.micro_batch, step.chunk}];
    if (forward) {
      if (done != Progress::none) fail(stage, i, step, "is scheduled twice");
      const auto [slot, is_free] = slots.emplace(step.slot, &step);
      if (!is_free)
        fail(stage, i, step,
             fmt::format("takes slot {}, which the {} still holds", step.slot,
                         to_string(*slot->second)));
      peak = std::max(peak, slots.size());
      done = Progress::forward;
    } else {
      if (done == Progress::none) fail(stage, i, step, "comes before its forward");
      if (alone && done == Progress::forward)
        fail(stage, i, step, "comes before its input gradient");
      if (done == Progress::backward || (!alone && done == Progress::input_gradient))
        fail(stage, i, step, "is scheduled twice");
      const auto slot = slots.find(step.slot);
      if (slot == slots.end() || slot->second->micro_batch != step.micro_batch ||
          slot->second->chunk != step.chunk)
        fail(stage, i, step,
             fmt::format("reads slot {}, which its forward did not take", step.slot));
      done = step.kind == StepKind::input_gradient ? Progress::input_gradient : Progress::backward;
      if (done == Progress::backward) slots.erase(slot);
    }
  }
  for (int m = 0; m < micro_batches; ++m)
    for (int chunk = 0; chunk < pipeline.chunks; ++chunk) {
      const Progress done = progress[{m, chunk}];
      if (done == Progress::backward) continue;
      const StepKind missing = done == Progress::none      ? StepKind::forward
                               : done == Progress::forward ? StepKind::backward
                                                           : StepKind::weight_gradient;
      throw InternalError("pipeline schedule: stage {} has no {}", stage,
                          to_string(Step{.kind = missing, .micro_batch = m, .chunk = chunk}));
    }
  return static_cast<int>(peak);
}

// The time of an event that has not happened yet.
constexpr double kNever = std::numeric_limits<double>::infinity();

/// Messages of one kind from one stage to another, in the order sent.
struct Channel {
  struct Message {
    std::size_t from_step;
    int micro_batch;
    int to_virtual_stage;
    double arrival;
  };
  std::deque<Message> waiting;
  double last_received = 0;
};

/// Steps whose buffers another step needs: of its output, of its gradient, and of the gradient that
/// the next step receives.
struct BufferUsers {
  std::array<std::size_t, 3> steps{};
  std::size_t count = 0;

  void add(std::size_t step) { steps.at(count++) = step; }
};

/// For each step of a stage the earlier steps whose messages must have left before it computes,
/// because it needs their buffer, or the next one does, whose receive overlaps with it: each slot
/// has a buffer for its output, and gradients alternate between two.
std::vector<BufferUsers> buffer_users(const StageSchedule& steps) {
  std::vector<BufferUsers> users(steps.size());
  std::vector<std::ptrdiff_t> outputs(count_slots(steps),
                                      -1);  // the last step that sent from there
  std::vector<std::size_t> gradients;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    std::ptrdiff_t& output = outputs[step.slot];
    if (output >= 0) users[i].add(static_cast<std::size_t>(output));
    output = step.kind == StepKind::forward && step.sends() ? static_cast<std::ptrdiff_t>(i) : -1;
    if (!step.passes_gradient()) continue;
    if (gradients.size() >= 2) {
      const std::size_t user = gradients[gradients.size() - 2];
      if (steps[user].sends()) users[step.receives() ? i - 1 : i].add(user);
    }
    gradients.push_back(i);
  }
  return users;
}

/// All stages at the same time, each blocked while its step must wait.
class Machine {
 public:
  Machine(const std::vector<StageSchedule>& schedule, const VirtualStages& pipeline,
          const std::vector<StepCosts>& costs, SendRule rule)
      : schedule_(schedule),
        pipeline_(pipeline),
        costs_(costs),
        rule_(rule),
        stages_(schedule.size()),
        channels_(2 * schedule.size()) {
    for (int stage = 0; stage < pipeline_.stages; ++stage) {
      stages_[stage].received.assign(schedule_[stage].size(), kNever);
      stages_[stage].times.reserve(schedule_[stage].size());
      if (rule == SendRule::overlapped)
        stages_[stage].buffer_users = buffer_users(schedule_[stage]);
    }
  }

  /// Each step's times. Stages wait for messages only, so the order in which they advance does not
  /// change the result.
  std::vector<std::vector<StepTime>> run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int stage = 0; stage < pipeline_.stages; ++stage)
        while (advance(stage)) moved = true;
    }
    std::vector<std::vector<StepTime>> times;
    for (int stage = 0; stage < pipeline_.stages; ++stage) {
      const State& state = stages_[stage];
      if (state.next < schedule_[stage].size()) fail_stuck(stage);
      times.push_back(state.times);
    }
    return times;
  }

 private:
  enum class Phase { receive, compute, send, receive_next, hand_over };
  struct State {
    std::size_t next = 0;
    Phase phase = Phase::receive;
    bool received_early = false;  ///< whether receive_next took the current step's message
    double clock = 0;
    double computed = 0;  ///< when the current step's computation ended
    std::vector<StepTime> times;
    std::vector<double> received;  ///< when each step's message was
    std::vector<BufferUsers> buffer_users;
  };

  /// Advances the stage's current step by one phase; false if it must wait or all steps are done.
  bool advance(int stage) {
    State& state = stages_[stage];
    if (state.next == schedule_[stage].size()) return false;
    const Step& step = schedule_[stage][state.next];
    switch (state.phase) {
      case Phase::receive:
        if (!state.received_early && !receive(stage, state.next, state.clock)) return false;
        state.received_early = false;
        state.phase = Phase::compute;
        return true;
      case Phase::compute:
        if (rule_ == SendRule::overlapped && !buffers_are_free(state)) return false;
        compute(stage, step);
        state.phase = Phase::send;
        return true;
      case Phase::send:
        if (!send(stage, step)) return false;
        state.phase = Phase::receive_next;
        return true;
      case Phase::receive_next:
        if (rule_ == SendRule::exchanged && state.next + 1 < schedule_[stage].size()) {
          if (!receive(stage, state.next + 1, state.computed)) return false;
          state.received_early = true;
        }
        state.phase = Phase::hand_over;
        return true;
      case Phase::hand_over:
        if (!hand_over(stage, step)) return false;
        state.phase = Phase::receive;
        ++state.next;
        return true;
    }
    throw InternalError("unknown phase");
  }

  /// Receives the message that step `index` waits for since `posted`; true if it waits for none.
  bool receive(int stage, std::size_t index, double posted) {
    const Step& step = schedule_[stage][index];
    if (!step.receives()) return true;
    State& state = stages_[stage];
    Channel& channel = channel_from(step.receive_from, step);
    if (channel.waiting.empty()) return false;
    const Channel::Message message = channel.waiting.front();
    channel.waiting.pop_front();
    if (message.micro_batch != step.micro_batch ||
        message.to_virtual_stage != pipeline_.index(stage, step.chunk))
      fail(stage, static_cast<int>(index), step,
           fmt::format("receives the message of micro-batch {} from stage {}", message.micro_batch,
                       step.receive_from));
    channel.last_received = std::max(posted, message.arrival);
    stages_[step.receive_from].received[message.from_step] = channel.last_received;
    state.clock = std::max(state.clock, channel.last_received);
    return true;
  }

  /// Whether the messages that last used the current step's buffers have left.
  bool buffers_are_free(State& state) const {
    const BufferUsers& users = state.buffer_users[state.next];
    for (std::size_t i = 0; i < users.count; ++i) {
      const std::size_t user = users.steps[i];
      if (state.received[user] == kNever) return false;
      state.clock = std::max(state.clock, state.received[user]);
    }
    return true;
  }

  /// Whether the step's own message was received, if the rule waits for that.
  bool hand_over(int stage, const Step& step) {
    if (!step.sends() || (rule_ != SendRule::synchronous && rule_ != SendRule::exchanged))
      return true;
    const Channel& channel = channel_from(stage, step);
    if (!channel.waiting.empty()) return false;
    State& state = stages_[stage];
    state.clock = std::max(state.clock, channel.last_received);
    return true;
  }

  double cost_of(int stage, const Step& step) const {
    const StepCosts& costs = costs_[pipeline_.index(stage, step.chunk)];
    switch (step.kind) {
      case StepKind::forward:
        return costs.forward;
      case StepKind::backward:
        return costs.backward;
      case StepKind::input_gradient:
        return costs.backward * (1 - costs.weight_share);
      case StepKind::weight_gradient:
        return costs.backward * costs.weight_share;
    }
    throw InternalError("unknown step {}", static_cast<int>(step.kind));
  }

  void compute(int stage, const Step& step) {
    State& state = stages_[stage];
    state.computed = state.clock + cost_of(stage, step);
    state.times.push_back({state.clock, state.computed});
    state.clock = state.computed;
  }

  bool send(int stage, const Step& step) {
    if (!step.sends()) return true;
    State& state = stages_[stage];
    Channel& channel = channel_from(stage, step);
    if (rule_ == SendRule::one_in_flight) {
      if (!channel.waiting.empty()) return false;
      state.clock = std::max(state.clock, channel.last_received);
    }
    const int from = pipeline_.index(stage, step.chunk);
    const int to = from + (step.kind == StepKind::forward ? 1 : -1);
    channel.waiting.push_back(
        {state.next, step.micro_batch, to, state.clock + costs_[std::min(from, to)].transfer});
    return true;
  }

  /// The channel of `sender` in the direction of the step's messages: a stage sends activations to
  /// one stage only, and gradients, of both kinds of backward, to one.
  Channel& channel_from(int sender, const Step& step) {
    return channels_[2 * sender + (step.kind == StepKind::forward ? 0 : 1)];
  }

  [[noreturn]] void fail_stuck(int stage) const {
    const State& state = stages_[stage];
    const std::size_t index = state.next + (state.phase == Phase::receive_next ? 1 : 0);
    const Step& step = schedule_[stage][index];
    std::string what = fmt::format("to send to stage {}", step.send_to);
    if (state.phase == Phase::receive || state.phase == Phase::receive_next)
      what = fmt::format("to receive from stage {}", step.receive_from);
    if (state.phase == Phase::compute) what = "until its buffers have been sent";
    fail(stage, static_cast<int>(index), step, "deadlocks: it waits " + what);
  }

  const std::vector<StageSchedule>& schedule_;
  const VirtualStages pipeline_;
  const std::vector<StepCosts>& costs_;
  const SendRule rule_;
  std::vector<State> stages_;
  std::vector<Channel> channels_;  // by sender and direction
};

VirtualStages virtual_stages(const std::vector<StageSchedule>& schedule) {
  TRIREME_CHECK(!schedule.empty(), "a pipeline without stages");
  VirtualStages pipeline{static_cast<int>(schedule.size()), 1};
  for (const StageSchedule& steps : schedule)
    for (const Step& step : steps) pipeline.chunks = std::max(pipeline.chunks, step.chunk + 1);
  return pipeline;
}

void check_costs(const VirtualStages& pipeline, const std::vector<StepCosts>& costs) {
  TRIREME_CHECK(static_cast<int>(costs.size()) == pipeline.stages * pipeline.chunks,
                "costs of {} virtual stages for {} stages of {} chunks", costs.size(),
                pipeline.stages, pipeline.chunks);
}

}  // namespace

Simulation simulate(const std::vector<StageSchedule>& schedule, int micro_batches,
                    const StepCosts& costs, SendRule rule) {
  const VirtualStages pipeline = virtual_stages(schedule);
  return simulate_stages(schedule, micro_batches,
                         std::vector<StepCosts>(pipeline.stages * pipeline.chunks, costs), rule);
}

std::vector<double> stage_ends(const std::vector<StageSchedule>& schedule,
                               const std::vector<StepCosts>& costs, SendRule rule) {
  const VirtualStages pipeline = virtual_stages(schedule);
  check_costs(pipeline, costs);
  std::vector<double> ends;
  for (const auto& times : Machine(schedule, pipeline, costs, rule).run())
    ends.push_back(times.empty() ? 0 : times.back().end);
  return ends;
}

Simulation simulate_stages(const std::vector<StageSchedule>& schedule, int micro_batches,
                           const std::vector<StepCosts>& costs, SendRule rule) {
  TRIREME_CHECK(micro_batches >= 1, "{} micro-batches", micro_batches);
  const VirtualStages pipeline = virtual_stages(schedule);
  check_costs(pipeline, costs);

  Simulation result;
  for (int stage = 0; stage < pipeline.stages; ++stage)
    result.peak_activations.push_back(check_stage(schedule[stage], stage, micro_batches, pipeline));
  result.times = Machine(schedule, pipeline, costs, rule).run();

  double busy = 0;
  for (const auto& times : result.times)
    for (const StepTime& time : times) {
      busy += time.end - time.start;
      result.makespan = std::max(result.makespan, time.end);
    }
  if (result.makespan > 0) result.bubble = 1 - busy / (pipeline.stages * result.makespan);
  return result;
}

}  // namespace trireme::pipeline
