#include "pipeline/schedule.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "../message_of.hpp"
#include "core/error.hpp"

namespace trireme::pipeline {
namespace {

using Schedule = std::vector<StageSchedule>;

Schedule one_f_one_b_of_all(int stages, int micro_batches) {
  Schedule schedule;
  for (int stage = 0; stage < stages; ++stage)
    schedule.push_back(one_f_one_b(stages, stage, micro_batches));
  return schedule;
}

/// All forwards, then all backwards, every micro-batch in its own slot.
Schedule all_forward_then_backward(int stages, int micro_batches) {
  Schedule schedule = one_f_one_b_of_all(stages, micro_batches);
  for (StageSchedule& steps : schedule) {
    std::stable_sort(steps.begin(), steps.end(),
                     [](const Step& a, const Step& b) { return a.kind < b.kind; });
    for (Step& step : steps) step.slot = step.micro_batch;
  }
  return schedule;
}

/// The message of the InternalError that the simulation ends in; empty when it succeeds.
std::string failure_of(const Schedule& schedule, int micro_batches,
                       SendRule rule = SendRule::buffered) {
  return message_of<InternalError>([&] { simulate(schedule, micro_batches, {}, rule); });
}

/// Calls `visit` for every kind of schedule on some small pipelines.
void for_small_pipelines(const std::function<void(const Schedule&, int)>& visit) {
  for (int stages = 1; stages <= 4; ++stages) {
    for (int micro_batches = 1; micro_batches <= 6; ++micro_batches)
      visit(one_f_one_b_of_all(stages, micro_batches), micro_batches);
    visit(make_schedules({ScheduleKind::interleaved, stages, 2, stages}), stages);
    visit(make_schedules({ScheduleKind::zero_bubble, stages, 1, 4}), 4);
  }
}

/// No step of `schedule` deadlocks, whether the executor overlaps or, where `exchanges`, not;
/// with overlap none waits longer than under buffered sends.
void expect_runs(const Schedule& schedule, int micro_batches, bool exchanges = true) {
  EXPECT_EQ(failure_of(schedule, micro_batches, SendRule::one_in_flight), "");
  EXPECT_EQ(failure_of(schedule, micro_batches, SendRule::overlapped), "");
  EXPECT_DOUBLE_EQ(simulate(schedule, micro_batches, {}, SendRule::overlapped).makespan,
                   simulate(schedule, micro_batches).makespan);
  if (exchanges) {
    EXPECT_EQ(failure_of(schedule, micro_batches, SendRule::exchanged), "");
  }
}

TEST(Simulator, ProvesOneFOneB) {
  for (int stages = 1; stages <= 8; ++stages)
    for (int micro_batches = 1; micro_batches <= 32; ++micro_batches) {
      SCOPED_TRACE(fmt::format("{} stages, {} micro-batches", stages, micro_batches));
      const Schedule schedule = one_f_one_b_of_all(stages, micro_batches);
      const Simulation result = simulate(schedule, micro_batches);
      for (int stage = 0; stage < stages; ++stage)
        EXPECT_EQ(result.peak_activations[stage], std::min(stages - stage, micro_batches));
      EXPECT_DOUBLE_EQ(result.makespan, 2.0 * (micro_batches + stages - 1));
      EXPECT_NEAR(result.bubble, (stages - 1.0) / (micro_batches + stages - 1.0), 1e-12);
      expect_runs(schedule, micro_batches);
    }
}

TEST(Simulator, ProvesInterleaved) {
  for (int stages = 1; stages <= 8; ++stages)
    for (int chunks = 1; chunks <= 4; ++chunks)
      for (int groups = 1; groups <= 4; ++groups) {
        const int micro_batches = groups * stages;
        SCOPED_TRACE(
            fmt::format("{} stages, {} chunks, {} micro-batches", stages, chunks, micro_batches));
        const Schedule schedule =
            make_schedules({ScheduleKind::interleaved, stages, chunks, micro_batches});
        const Simulation result = simulate(schedule, micro_batches, {.forward = 1, .backward = 2});
        for (int stage = 0; stage < stages; ++stage)
          EXPECT_EQ(result.peak_activations[stage],
                    std::min(2 * (stages - stage - 1) + (chunks - 1) * stages + 1,
                             chunks * micro_batches));
        EXPECT_DOUBLE_EQ(result.makespan, 3.0 * (chunks * micro_batches + stages - 1));
        EXPECT_NEAR(result.bubble, (stages - 1.0) / (chunks * micro_batches + stages - 1.0), 1e-12);
        expect_runs(schedule, micro_batches, /*exchanges=*/false);
      }
}

TEST(Simulator, InterleavedNeedsOverlap) {
  const Schedule schedule = make_schedules({ScheduleKind::interleaved, 4, 2, 8});
  EXPECT_NE(failure_of(schedule, 8, SendRule::exchanged).find("deadlocks: it waits to "),
            std::string::npos);
}

TEST(Simulator, ProvesZeroBubble) {
  const StepCosts costs{.forward = 1, .backward = 2};
  for (int stages = 1; stages <= 8; ++stages)
    for (int micro_batches = 1; micro_batches <= 32; ++micro_batches) {
      SCOPED_TRACE(fmt::format("{} stages, {} micro-batches", stages, micro_batches));
      const Schedule schedule =
          make_schedules({ScheduleKind::zero_bubble, stages, 1, micro_batches});
      const Simulation result = simulate(schedule, micro_batches, costs);
      // On every stage what 1F1B holds on the first.
      for (int stage = 0; stage < stages; ++stage)
        EXPECT_EQ(result.peak_activations[stage], std::min(stages, micro_batches));
      const Simulation plain =
          simulate(one_f_one_b_of_all(stages, micro_batches), micro_batches, costs);
      EXPECT_LE(result.makespan, plain.makespan);
      if (micro_batches >= stages) {
        // A third of 1F1B's bubble: (p - 1) (F + I - W) against (p - 1) (F + I + W).
        EXPECT_DOUBLE_EQ(result.makespan, 3.0 * micro_batches + stages - 1);
        EXPECT_DOUBLE_EQ(plain.makespan, 3.0 * (micro_batches + stages - 1));
      }
      expect_runs(schedule, micro_batches);
    }
}

TEST(Simulator, WeightGradientsMayCostMoreOrLess) {
  const Schedule schedule = make_schedules({ScheduleKind::zero_bubble, 4, 1, 12});
  for (const double share : {0.3, 0.4, 0.5}) {
    const double F = 1, I = 2 * (1 - share), W = 2 * share;
    const StepCosts costs{.forward = F, .backward = I + W, .weight_share = share};
    EXPECT_NEAR(simulate(schedule, 12, costs).makespan, 12 * (F + I + W) + 3 * (F + I - W), 1e-9)
        << share;
  }
}

TEST(Simulator, BackwardMayCostMoreThanForward) {
  const Simulation result = simulate(one_f_one_b_of_all(4, 8), 8, {.forward = 1, .backward = 2});
  EXPECT_DOUBLE_EQ(result.makespan, 33);
  EXPECT_NEAR(result.bubble, 3.0 / 11.0, 1e-12);
}

TEST(Simulator, TimesStepsAndTransfers) {
  const Simulation result = simulate(one_f_one_b_of_all(2, 1), 1, {1, 2, 0.5});
  EXPECT_DOUBLE_EQ(result.times[0][0].end, 1);
  EXPECT_DOUBLE_EQ(result.times[1][0].start, 1.5);
  EXPECT_DOUBLE_EQ(result.times[1][1].start, 2.5);
  EXPECT_DOUBLE_EQ(result.times[0][1].start, 5);
  EXPECT_DOUBLE_EQ(result.makespan, 7);
  EXPECT_NEAR(result.bubble, 1 - 6.0 / 14.0, 1e-12);
}

TEST(Simulator, TimesStagesThatDiffer) {
  const auto schedule = one_f_one_b_of_all(2, 2);
  const std::vector<StepCosts> costs = {{1, 2, 0.5}, {3, 4, 100}};
  // Stage 0: F0 0-1, F1 1-2. Stage 1: F0 1.5-4.5, B0 4.5-8.5, F1 8.5-11.5, B1 11.5-15.5; then a
  // message and the last backward of stage 0.
  EXPECT_DOUBLE_EQ(simulate_stages(schedule, 2, costs).makespan, 15.5 + 0.5 + 2);
  EXPECT_EQ(stage_ends(schedule, costs), (std::vector<double>{18, 15.5}));
  const std::vector<StepCosts> too_few(1);
  EXPECT_THAT(message_of<InternalError>([&] { simulate_stages(schedule, 2, too_few); }),
              testing::HasSubstr("costs of 1 virtual stages for 2 stages of 1 chunks"));
}

TEST(Simulator, TimesAPublishedUnevenPipeline) {
  // GPT-2 XL on 8 stages of A10s: FASOP's known_cost has the forward time of the embedding, of a
  // layer and of the head; backward passes take twice as long.
  const auto makespan = [](std::vector<int> layers) {
    std::vector<StepCosts> costs;
    for (const int count : layers) costs.push_back({count * 2.3422291666666665e-3, 0, 0});
    costs.front().forward += 0.297e-3;
    costs.back().forward += 2.1184e-3;
    for (StepCosts& stage : costs) stage.backward = 2 * stage.forward;
    return simulate_stages(one_f_one_b_of_all(8, 16), 16, costs).makespan;
  };
  EXPECT_NEAR(makespan({0, 11, 8, 8, 8, 8, 5, 0}), 1.387, 5e-4);  // a run printed 1.374 to 1.424 s
  EXPECT_NEAR(makespan({7, 6, 6, 6, 6, 6, 6, 5}), 1.0396, 5e-4);
}

TEST(Simulator, SynchronousSendsDeadlockOneFOneBOnly) {
  EXPECT_EQ(failure_of(one_f_one_b_of_all(2, 1), 1, SendRule::synchronous), "");
  EXPECT_NE(
      failure_of(one_f_one_b_of_all(2, 2), 2, SendRule::synchronous)
          .find(
              "stage 0, step 1 (forward of micro-batch 1) deadlocks: it waits to send to stage 1"),
      std::string::npos);
  EXPECT_EQ(failure_of(all_forward_then_backward(4, 8), 8, SendRule::synchronous), "");
}

TEST(Simulator, OneSendInFlightHoldsTheSenderBack) {
  // The second message leaves when stage 1 has taken the first, at 11; only then does stage 0 begin
  // its third forward.
  const Schedule schedule = all_forward_then_backward(2, 3);
  const StepCosts costs{.forward = 1, .backward = 1, .transfer = 10};
  const Simulation buffered = simulate(schedule, 3, costs);
  const Simulation held = simulate(schedule, 3, costs, SendRule::one_in_flight);
  EXPECT_DOUBLE_EQ(buffered.times[0][2].start, 2);
  EXPECT_DOUBLE_EQ(held.times[0][2].start, 11);
  EXPECT_GT(held.makespan, buffered.makespan);
}

TEST(Simulator, CountsAllForwardThenBackward) {
  const Simulation result = simulate(all_forward_then_backward(4, 8), 8);
  EXPECT_EQ(result.peak_activations, std::vector<int>({8, 8, 8, 8}));
  EXPECT_DOUBLE_EQ(result.makespan, 22);
}

TEST(Simulator, RunsChunksAroundTheRing) {
  // Two stages of two chunks: the chain is 0, 1, 0, 1.
  const auto step = [](StepKind kind, int chunk, int from, int to) {
    return Step{kind, 0, chunk, chunk, from, to};
  };
  const auto F = StepKind::forward, B = StepKind::backward;
  const Schedule schedule = {
      {step(F, 0, kNoStage, 1), step(F, 1, 1, 1), step(B, 1, 1, 1), step(B, 0, 1, kNoStage)},
      {step(F, 0, 0, 0), step(F, 1, 0, kNoStage), step(B, 1, kNoStage, 0), step(B, 0, 0, 0)}};
  const Simulation result = simulate(schedule, 1);
  EXPECT_DOUBLE_EQ(result.makespan, 8);
  EXPECT_EQ(result.peak_activations, std::vector<int>({2, 2}));
}

TEST(Simulator, CatchesEveryDroppedStep) {
  for_small_pipelines([](const Schedule& schedule, int micro_batches) {
    for (std::size_t stage = 0; stage < schedule.size(); ++stage)
      for (std::size_t i = 0; i < schedule[stage].size(); ++i) {
        Schedule mutant = schedule;
        mutant[stage].erase(mutant[stage].begin() + static_cast<std::ptrdiff_t>(i));
        EXPECT_NE(failure_of(mutant, micro_batches), "") << "stage " << stage << ", step " << i;
      }
  });
}

TEST(Simulator, CatchesEveryDuplicatedStep) {
  for_small_pipelines([](const Schedule& schedule, int micro_batches) {
    for (std::size_t stage = 0; stage < schedule.size(); ++stage)
      for (std::size_t i = 0; i < schedule[stage].size(); ++i) {
        Schedule mutant = schedule;
        mutant[stage].push_back(schedule[stage][i]);
        EXPECT_NE(failure_of(mutant, micro_batches), "") << "stage " << stage << ", step " << i;
      }
  });
}

TEST(Simulator, CatchesSwappedSteps) {
  // Two steps of one kind in the wrong order meet the wrong messages, but for weight gradients,
  // which have none. Steps of different kinds may change places and leave a schedule that runs, but
  // never one that is faster.
  int caught = 0, slower = 0;
  for_small_pipelines([&](const Schedule& schedule, int micro_batches) {
    const double makespan = simulate(schedule, micro_batches).makespan;
    for (std::size_t stage = 0; stage < schedule.size(); ++stage)
      for (std::size_t i = 0; i < schedule[stage].size(); ++i)
        for (std::size_t j = i + 1; j < schedule[stage].size(); ++j) {
          Schedule mutant = schedule;
          std::swap(mutant[stage][i], mutant[stage][j]);
          if (!failure_of(mutant, micro_batches).empty()) {
            ++caught;
            continue;
          }
          const Step &a = schedule[stage][i], &b = schedule[stage][j];
          EXPECT_TRUE(a.kind != b.kind || a.kind == StepKind::weight_gradient) << to_string(a);
          EXPECT_GE(simulate(mutant, micro_batches).makespan, makespan);
          ++slower;
        }
  });
  EXPECT_GT(caught, 10 * slower);
}

TEST(Simulator, CatchesSwappedSends) {
  for_small_pipelines([](const Schedule& schedule, int micro_batches) {
    for (std::size_t stage = 0; stage < schedule.size(); ++stage)
      for (std::size_t i = 0; i + 1 < schedule[stage].size(); ++i) {
        Schedule mutant = schedule;
        std::swap(mutant[stage][i].send_to, mutant[stage][i + 1].send_to);
        if (mutant == schedule) continue;
        EXPECT_NE(failure_of(mutant, micro_batches).find("sends to"), std::string::npos);
      }
  });
}

TEST(Simulator, NamesTheDeadlockedStep) {
  Schedule schedule = {one_f_one_b(2, 0, 2), all_forward_then_backward(2, 2)[1]};
  std::swap(schedule[0][1], schedule[0][2]);  // F0 B0 F1 B1 against F0 F1 B0 B1
  EXPECT_EQ(failure_of(schedule, 2),
            "pipeline schedule: stage 0, step 1 (backward of micro-batch 0) deadlocks: it waits to "
            "receive from stage 1");
}

TEST(Simulator, NamesWhatIsWrong) {
  const Schedule good = one_f_one_b_of_all(2, 4);
  const auto failure = [&](const std::function<void(Schedule&)>& mutate) {
    Schedule mutant = good;
    mutate(mutant);
    return failure_of(mutant, 4);
  };
  EXPECT_EQ(failure([](Schedule& s) { s[0][1].slot = 0; }),
            "pipeline schedule: stage 0, step 1 (forward of micro-batch 1) takes slot 0, which the "
            "forward of micro-batch 0 still holds");
  EXPECT_EQ(
      failure([](Schedule& s) { s[0][2].slot = 1; }),
      "pipeline schedule: stage 0, step 2 (backward of micro-batch 0) reads slot 1, which its "
      "forward did not take");
  EXPECT_EQ(failure([](Schedule& s) { std::swap(s[1][0], s[1][1]); }),
            "pipeline schedule: stage 1, step 0 (backward of micro-batch 0) comes before its "
            "forward");
  EXPECT_EQ(failure([](Schedule& s) { s[0].pop_back(); }),
            "pipeline schedule: stage 0 has no backward of micro-batch 3");
  EXPECT_EQ(failure([](Schedule& s) { s[0].back().kind = StepKind::input_gradient; }),
            "pipeline schedule: stage 0 has no weight gradient of micro-batch 3");
  EXPECT_EQ(
      failure([](Schedule& s) { s[1][1] = {.kind = StepKind::weight_gradient, .micro_batch = 0}; }),
      "pipeline schedule: stage 1, step 1 (weight gradient of micro-batch 0) comes before "
      "its input gradient");
  EXPECT_EQ(failure([](Schedule& s) { s[1][0].receive_from = kNoStage; }),
            "pipeline schedule: stage 1, step 0 (forward of micro-batch 0) receives from no stage, "
            "not from stage 0");
  EXPECT_EQ(failure([](Schedule& s) { s[0].push_back({.micro_batch = 4, .send_to = 1}); }),
            "pipeline schedule: stage 0, step 8 (forward of micro-batch 4) is not one of 4 "
            "micro-batches");
  EXPECT_EQ(failure([](Schedule& s) {
              std::swap(s[0][0].micro_batch, s[0][1].micro_batch);
              std::swap(s[0][0].slot, s[0][1].slot);
            }),
            "pipeline schedule: stage 1, step 0 (forward of micro-batch 0) receives the message of "
            "micro-batch 1 from stage 0");
}

}  // namespace
}  // namespace trireme::pipeline
