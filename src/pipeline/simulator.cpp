#include "pipeline/simulator.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>
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

/// What the chain of stages and chunks demands of a step.
struct Chain {
  int stages;
  int chunks;

  int link(int stage, int chunk) const { return chunk * stages + stage; }
  /// The stage that holds `link`, kNoStage past either end.
  int stage_of(int link) const {
    return link >= 0 && link < stages * chunks ? link % stages : kNoStage;
  }
};

/// Checks one stage's list by itself: links, slots, order and completeness. Returns the most
/// micro-batches alive at once.
int check_stage(const StageSchedule& steps, int stage, int micro_batches, const Chain& chain) {
  enum class Progress { none, forward, backward };
  std::map<std::pair<int, int>, Progress> progress;  // by micro-batch and chunk
  std::map<int, const Step*> slots;                  // the forward that took each slot
  std::size_t peak = 0;
  for (int i = 0; i < static_cast<int>(steps.size()); ++i) {
    const Step& step = steps[i];
    const bool forward = step.kind == StepKind::forward;
    if (step.micro_batch < 0 || step.micro_batch >= micro_batches)
      fail(stage, i, step, fmt::format("is not one of {} micro-batches", micro_batches));
    if (step.chunk < 0) fail(stage, i, step, "has no chunk");

    const int link = chain.link(stage, step.chunk);
    const int before = chain.stage_of(forward ? link - 1 : link + 1);
    const int after = chain.stage_of(forward ? link + 1 : link - 1);
    if (step.receive_from != before)
      fail(stage, i, step,
           fmt::format("receives from {}, not from {}", stage_name(step.receive_from),
                       stage_name(before)));
    if (step.send_to != after)
      fail(stage, i, step,
           fmt::format("sends to {}, not to {}", stage_name(step.send_to), stage_name(after)));

    Progress& done = progress[{step.micro_batch, step.chunk}];
    if (forward) {
      if (done != Progress::none) fail(stage, i, step, "is there twice");
      const auto [slot, is_free] = slots.emplace(step.slot, &step);
      if (!is_free)
        fail(stage, i, step,
             fmt::format("takes slot {}, which the {} still holds", step.slot,
                         to_string(*slot->second)));
      peak = std::max(peak, slots.size());
      done = Progress::forward;
    } else {
      if (done == Progress::none) fail(stage, i, step, "comes before its forward");
      if (done == Progress::backward) fail(stage, i, step, "is there twice");
      const auto slot = slots.find(step.slot);
      if (slot == slots.end() || slot->second->micro_batch != step.micro_batch ||
          slot->second->chunk != step.chunk)
        fail(stage, i, step,
             fmt::format("reads slot {}, which its forward did not take", step.slot));
      slots.erase(slot);
      done = Progress::backward;
    }
  }
  for (int m = 0; m < micro_batches; ++m)
    for (int chunk = 0; chunk < chain.chunks; ++chunk) {
      const auto found = progress.find({m, chunk});
      if (found == progress.end() || found->second != Progress::backward)
        throw InternalError(
            "pipeline schedule: stage {} has no {}", stage,
            to_string(Step{.kind = found == progress.end() ? StepKind::forward : StepKind::backward,
                           .micro_batch = m,
                           .chunk = chunk}));
    }
  return static_cast<int>(peak);
}

/// Messages of one kind from one stage to another, in the order sent.
struct Channel {
  struct Message {
    int micro_batch;
    int to_link;
    double arrival;
  };
  std::deque<Message> waiting;
  double last_received = 0;
};

/// All stages running at once, each blocking where its steps must wait.
class Machine {
 public:
  Machine(const std::vector<StageSchedule>& schedule, const Chain& chain, const StepCosts& costs,
          SendRule rule)
      : schedule_(schedule), chain_(chain), costs_(costs), rule_(rule), stages_(schedule.size()) {}

  /// Each step's times. Stages only ever wait for messages, so the order in which they are tried
  /// does not change the result.
  std::vector<std::vector<StepTime>> run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int stage = 0; stage < chain_.stages; ++stage)
        while (advance(stage)) moved = true;
    }
    std::vector<std::vector<StepTime>> times;
    for (int stage = 0; stage < chain_.stages; ++stage) {
      const State& state = stages_[stage];
      if (state.next < schedule_[stage].size()) fail_stuck(stage);
      times.push_back(state.times);
    }
    return times;
  }

 private:
  enum class Phase { receive, send, hand_over };
  struct State {
    std::size_t next = 0;
    Phase phase = Phase::receive;
    double clock = 0;
    std::vector<StepTime> times;
  };

  /// Takes the stage's current step one phase further; false when it must wait or all is done.
  bool advance(int stage) {
    State& state = stages_[stage];
    if (state.next == schedule_[stage].size()) return false;
    const Step& step = schedule_[stage][state.next];
    if (state.phase == Phase::receive) {
      if (!receive(stage, step)) return false;
      compute(state, step);
      state.phase = Phase::send;
    } else if (state.phase == Phase::send) {
      if (!send(stage, step)) return false;
      state.phase = Phase::hand_over;
    } else {
      if (step.sends() && rule_ == SendRule::synchronous) {
        const Channel& channel = channel_to(stage, step);
        if (!channel.waiting.empty()) return false;
        state.clock = std::max(state.clock, channel.last_received);
      }
      state.phase = Phase::receive;
      ++state.next;
    }
    return true;
  }

  bool receive(int stage, const Step& step) {
    if (!step.receives()) return true;
    State& state = stages_[stage];
    Channel& channel = channels_[{step.receive_from, stage, step.kind}];
    if (channel.waiting.empty()) return false;
    const Channel::Message message = channel.waiting.front();
    channel.waiting.pop_front();
    if (message.micro_batch != step.micro_batch ||
        message.to_link != chain_.link(stage, step.chunk))
      fail(stage, static_cast<int>(state.next), step,
           fmt::format("meets the message of micro-batch {} from stage {}", message.micro_batch,
                       step.receive_from));
    state.clock = std::max(state.clock, message.arrival);
    channel.last_received = state.clock;
    return true;
  }

  void compute(State& state, const Step& step) const {
    const double cost = step.kind == StepKind::forward ? costs_.forward : costs_.backward;
    state.times.push_back({state.clock, state.clock + cost});
    state.clock += cost;
  }

  bool send(int stage, const Step& step) {
    if (!step.sends()) return true;
    State& state = stages_[stage];
    Channel& channel = channel_to(stage, step);
    if (rule_ == SendRule::one_in_flight) {
      if (!channel.waiting.empty()) return false;
      state.clock = std::max(state.clock, channel.last_received);
    }
    const int link = chain_.link(stage, step.chunk) + (step.kind == StepKind::forward ? 1 : -1);
    channel.waiting.push_back({step.micro_batch, link, state.clock + costs_.transfer});
    return true;
  }

  Channel& channel_to(int stage, const Step& step) {
    return channels_[{stage, step.send_to, step.kind}];
  }

  [[noreturn]] void fail_stuck(int stage) const {
    const State& state = stages_[stage];
    const Step& step = schedule_[stage][state.next];
    const bool receiving = state.phase == Phase::receive;
    fail(stage, static_cast<int>(state.next), step,
         fmt::format("waits for ever to {} stage {}", receiving ? "receive from" : "send to",
                     receiving ? step.receive_from : step.send_to));
  }

  const std::vector<StageSchedule>& schedule_;
  const Chain chain_;
  const StepCosts costs_;
  const SendRule rule_;
  std::vector<State> stages_;
  std::map<std::tuple<int, int, StepKind>, Channel> channels_;  // by sender, receiver and kind
};

}  // namespace

Simulation simulate(const std::vector<StageSchedule>& schedule, int micro_batches,
                    const StepCosts& costs, SendRule rule) {
  TRIREME_CHECK(!schedule.empty() && micro_batches >= 1, "{} stages, {} micro-batches",
                schedule.size(), micro_batches);
  Chain chain{static_cast<int>(schedule.size()), 1};
  for (const StageSchedule& steps : schedule)
    for (const Step& step : steps) chain.chunks = std::max(chain.chunks, step.chunk + 1);

  Simulation result;
  for (int stage = 0; stage < chain.stages; ++stage)
    result.peak_activations.push_back(check_stage(schedule[stage], stage, micro_batches, chain));
  result.times = Machine(schedule, chain, costs, rule).run();

  double busy = 0;
  for (const auto& times : result.times)
    for (const StepTime& time : times) {
      busy += time.end - time.start;
      result.makespan = std::max(result.makespan, time.end);
    }
  if (result.makespan > 0) result.bubble = 1 - busy / (chain.stages * result.makespan);
  return result;
}

}  // namespace trireme::pipeline
