// ZeRO: sharding over data ranks changes neither gradients nor weights.
#include <gtest/gtest.h>

#include "../model/ranked_gpt.hpp"

namespace trireme::test {
namespace {

using model::StoreOptions;
using model::ZeroStage;
using pipeline::ScheduleKind;

constexpr int kZeroSteps = 3;

/// Gradients and weights sharded as `zero` says, with or without overlap.
StoreOptions store_options(ZeroStage zero, bool overlap) {
  return {
      .gradients = true, .zero = zero, .overlap_weights = overlap, .overlap_gradients = overlap};
}

struct Case {
  model::ModelSpec spec;
  grid::Layout layout;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  bool sequence_parallel = false;
  model::Recompute recompute = {};
  Precision precision = mixed_precision(DType::f32);
  std::int64_t bucket = 1000;  // cuts matrices
  optim::OptimizerType optimizer = optim::OptimizerType::adamw;
};

struct Result {
  std::vector<double> losses;
  double validation = 0.0;
  LogicalTensors weights;
};

RankedGpt make(const Case& run, ZeroStage zero, bool overlap = true) {
  return RankedGpt(world(), run.layout, run.schedule,
                   {.type = run.optimizer,
                    .eps = 1e-3,
                    .momentum = 0.9,
                    .zero = zero,
                    .bucket = run.bucket,
                    .overlap_gradients = overlap,
                    .overlap_parameters = overlap},
                   run.spec, run.precision, run.sequence_parallel, run.recompute,
                   store_options(zero, overlap));
}

Result train(const Case& run, ZeroStage zero, bool overlap = true) {
  RankedGpt gpt = make(run, zero, overlap);
  Result result;
  for (int step = 0; step < kZeroSteps; ++step) result.losses.push_back(gpt.step(1e-2));
  result.validation = gpt.evaluate(1000);
  result.losses.push_back(gpt.step(1e-2));
  result.weights = gpt.weights();
  return result;
}

void expect_close(const Result& ours, const Result& expected, double tolerance) {
  for (std::size_t i = 0; i < expected.losses.size(); ++i)
    EXPECT_NEAR(ours.losses[i], expected.losses[i], tolerance * expected.losses[i]);
  EXPECT_NEAR(ours.validation, expected.validation, tolerance * expected.validation);
  for (const auto& [name, tensor] : ours.weights)
    EXPECT_LE(distance(tensor, expected.weights.at(name)), tolerance * norm(tensor)) << name;
}

void expect_same(const Result& ours, const Result& expected) {
  EXPECT_EQ(ours.losses, expected.losses);
  EXPECT_EQ(ours.validation, expected.validation);
  EXPECT_EQ(ours.weights, expected.weights);
}

/// Every layout with several data ranks, under every schedule that it can have.
std::vector<Case> cases_of(const model::ModelSpec& spec) {
  std::vector<Case> all;
  for (const grid::Layout& layout : layouts_of(world()->size())) {
    if (layout.data == 1) continue;
    all.push_back({.spec = spec, .layout = layout, .schedule = RankedGpt::schedule_for(layout)});
    if (layout.pipeline > 1 && layout.chunks == 1)
      all.push_back({.spec = spec, .layout = layout, .schedule = ScheduleKind::zero_bubble});
    if (layout.tensor > 1) {
      all.push_back(all.back());
      all.back().sequence_parallel = true;
    }
  }
  return all;
}

std::string describe(const Case& run) {
  return fmt::format("{}, schedule {}, sequence {}", to_string(run.layout),
                     static_cast<int>(run.schedule), run.sequence_parallel ? "sharded" : "whole");
}

class Zero : public EveryModel {
 protected:
  static std::vector<Case> cases() { return cases_of(spec()); }
};
TRIREME_EVERY_MODEL(Zero);

// A data rank's micro-batches are summed one by one under ZeRO 2 and 3: another order.
TEST_P(Zero, EveryStageHasTheSameLossCurve) {
  for (const Case& run : cases()) {
    SCOPED_TRACE(describe(run));
    const Result whole = train(run, ZeroStage::none);
    ASSERT_LT(whole.losses.back(), whole.losses.front());
    expect_close(train(run, ZeroStage::optimizer_state), whole, 2e-5);
    const Result second = train(run, ZeroStage::gradients);
    expect_close(second, whole, 2e-5);
    expect_same(train(run, ZeroStage::weights), second);
    expect_same(train(run, ZeroStage::weights, /*overlap=*/false), second);
    expect_same(train(run, ZeroStage::gradients, /*overlap=*/false), second);
  }
}

TEST_P(Zero, EveryStageHasMuonsLossCurve) {
  for (Case run : cases()) {
    if (run.sequence_parallel || run.schedule == ScheduleKind::zero_bubble) continue;
    run.optimizer = optim::OptimizerType::muon;
    SCOPED_TRACE(describe(run));
    const Result whole = train(run, ZeroStage::none);
    ASSERT_LT(whole.losses.back(), whole.losses.front());
    expect_close(train(run, ZeroStage::optimizer_state), whole, 5e-4);
    const Result second = train(run, ZeroStage::gradients);
    expect_close(second, whole, 5e-4);
    expect_same(train(run, ZeroStage::weights), second);
  }
}

// With one micro-batch on each data rank the sums are those of ZeRO-1, bit by bit.
TEST_P(Zero, OneMicroBatchGivesTheBitsOfWholeGradients) {
  for (const Case& run : cases()) {
    if (run.layout.data != RankedGpt::kMicroBatches) continue;
    SCOPED_TRACE(describe(run));
    const Result whole = train(run, ZeroStage::optimizer_state);
    expect_same(train(run, ZeroStage::gradients), whole);
    expect_same(train(run, ZeroStage::weights), whole);
  }
}

TEST_P(Zero, RecomputedLayersGatherTheirWeightsTwice) {
  using What = model::Recompute::What;
  for (const Case& kept : cases()) {
    if (kept.schedule == ScheduleKind::zero_bubble) continue;
    SCOPED_TRACE(describe(kept));
    const Result expected = train(kept, ZeroStage::gradients);
    for (const model::Recompute& recompute :
         {model::Recompute{What::uniform, 1}, model::Recompute{What::uniform, 3},
          model::Recompute{What::block, 1}, model::Recompute{What::norms, 1}}) {
      Case again = kept;
      again.recompute = recompute;
      expect_same(train(again, ZeroStage::weights), expected);
      expect_same(train(again, ZeroStage::weights, /*overlap=*/false), expected);
    }
  }
}

TEST_P(Zero, SixteenBitWeightsAreTheSameUnderEveryStage) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (Case run : cases()) {
      run.precision = mixed_precision(dtype);
      SCOPED_TRACE(describe(run));
      const Result second = train(run, ZeroStage::gradients);
      expect_close(second, train(run, ZeroStage::optimizer_state), 2e-2);
      expect_same(train(run, ZeroStage::weights), second);
    }
  }
}

TEST_P(Zero, SixteenBitGradientsHaveNearlyTheCurveOfFp32) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (Case run : cases()) {
      run.precision = mixed_precision(dtype);
      SCOPED_TRACE(describe(run));
      const Result wide = train(run, ZeroStage::optimizer_state);
      run.precision.gradients = dtype;
      for (const ZeroStage zero :
           {ZeroStage::none, ZeroStage::optimizer_state, ZeroStage::gradients})
        expect_close(train(run, zero), wide, 3e-2);
      expect_same(train(run, ZeroStage::weights), train(run, ZeroStage::gradients));
      const RankedGpt gpt = make(run, ZeroStage::optimizer_state);
      const model::ParameterBuffer& gradients = gpt.parameters().gradient_buffer();
      for (const model::LocalParameter& local : gpt.parameters().placement().parameters) {
        const bool of_layer = local.parameter->stage == model::StagePlacement::layer &&
                              local.parameter->shape.rank() == 2;
        EXPECT_EQ(slice(gradients, local).dtype, of_layer ? dtype : DType::f32);
      }
    }
  }
}

TEST_P(Zero, KeepsShardsOfMatricesOnly) {
  for (const Case& run : cases()) {
    SCOPED_TRACE(describe(run));
    const RankedGpt gpt = make(run, ZeroStage::weights);
    const model::ParameterStore& store = gpt.parameters();
    const model::Placement& placement = store.placement();
    for (const model::ParameterBuffer* memory :
         {&store.weight_buffer(), &store.gradient_buffer()}) {
      EXPECT_EQ(memory->is_sharded(), !placement.layers.empty());
      EXPECT_EQ(memory->buffers(), std::min<int>(2, std::ssize(placement.layers)));
    }
    if (placement.layers.empty()) continue;
    EXPECT_THROW(store.weights(), InternalError);
    // Two layers use one buffer, and none that of its neighbour.
    const auto at = [&](std::size_t layer) {
      return store.weight_buffer().at(placement.layers[layer]).data;
    };
    for (std::size_t layer = 1; layer < placement.layers.size(); ++layer) {
      EXPECT_NE(at(layer), at(layer - 1));
      EXPECT_EQ(at(layer), at(layer % 2));
    }
  }
}

TEST_P(Zero, RefusesWholeStateOfShardedMatrices) {
  for (const Case& run : cases()) {
    if (run.layout.pipeline > 1) continue;
    EXPECT_THROW(RankedGpt(world(), run.layout, {.zero = ZeroStage::none}, run.spec,
                           mixed_precision(DType::f32), store_options(ZeroStage::gradients, false)),
                 InternalError);
  }
}

}  // namespace
}  // namespace trireme::test
