// Gradients on every layout against the serial ones, and recomputed layers against kept ones.
#include <gtest/gtest.h>

#include "ranked_gpt.hpp"

namespace trireme::test {
namespace {

using model::ZeroStage;

constexpr double kTolerance32 = 1e-5;  // of each tensor's norm, in fp32

/// Compares with the serial gradients those of every layout of the ranks there are that has more
/// than `above` tensor ranks.
void expect_serial_gradients(const model::ModelSpec& spec, int above,
                             const optim::OptimizerConfig& optimizer, bool sequence_parallel) {
  const auto serial = RankedGpt::serial({}, DType::f32, spec);
  const double serial_loss = serial->compute_gradients(kConsumed);
  const LogicalTensors expected = serial->gradients();
  const int ranks = world()->size();
  for (const grid::Layout& layout : layouts_of(ranks)) {
    if (layout.tensor <= above) continue;
    SCOPED_TRACE(to_string(layout));
    RankedGpt gpt(world(), layout, RankedGpt::schedule_for(layout), optimizer, spec,
                  mixed_precision(DType::f32), sequence_parallel);
    EXPECT_NEAR(gpt.compute_gradients(kConsumed), serial_loss, 1e-6 * serial_loss);
    for (const auto& [name, gradient] : gpt.gradients())
      EXPECT_LT(distance(without_key(name, gradient), without_key(name, expected.at(name))),
                kTolerance32 * norm(without_key(name, expected.at(name))))
          << name;
  }
}

class LayoutGradient : public EveryModel {};
TRIREME_EVERY_MODEL(LayoutGradient);

TEST_P(LayoutGradient, EqualsTheSerialOne) {
  expect_serial_gradients(spec(), 0, {.zero = ZeroStage::none}, /*sequence_parallel=*/false);
}

TEST_P(LayoutGradient, EqualsTheSerialOneWithTheSequenceParallel) {
  expect_serial_gradients(spec(), 1, {.zero = ZeroStage::none}, /*sequence_parallel=*/true);
}

// Buckets so small that many are reduced over data ranks overlapped with the last backward pass:
// each must have been summed over the tensor ranks before.
TEST_P(LayoutGradient, EqualsTheSerialOneWithTheSequenceParallelAndManyBuckets) {
  for (const ZeroStage zero : {ZeroStage::none, ZeroStage::optimizer_state})
    for (const bool overlap : {false, true}) {
      SCOPED_TRACE(fmt::format("ZeRO-{}, overlap {}", static_cast<int>(zero), overlap));
      expect_serial_gradients(spec(), 1,
                              {.zero = zero, .bucket = 1000, .overlap_gradients = overlap},
                              /*sequence_parallel=*/true);
    }
}

TEST_P(LayoutGradient, WithTheSequenceParallelIsTheSameOnAllTensorRanks) {
  const int ranks = world()->size();
  for (const grid::Layout& layout : layouts_of(ranks)) {
    if (layout.tensor == 1) continue;
    SCOPED_TRACE(to_string(layout));
    RankedGpt gpt(world(), layout, RankedGpt::schedule_for(layout), {.zero = ZeroStage::none},
                  spec(), mixed_precision(DType::f32),
                  /*sequence_parallel=*/true);
    gpt.compute_gradients(kConsumed);
    for (const model::LocalParameter& local : gpt.parameters().placement().parameters) {
      if (local.parameter->sharding != model::TensorSharding::none) continue;
      const std::vector<double> own = to_doubles(slice(gpt.parameters().gradients(), local));
      std::vector<double> first = own;
      gpt.groups().tensor->broadcast(first.data(), first.size() * sizeof(double), /*root=*/0);
      EXPECT_EQ(own, first) << local.parameter->name;
      EXPECT_GT(norm(own), 0.0) << local.parameter->name;
    }
  }
}

// Each weight's gradient is summed over micro-batches in the same order; only the order of other
// work changes.
TEST_P(LayoutGradient, IsTheSameBitByBitUnderEverySchedule) {
  const auto gradients = [](const grid::Layout& layout, pipeline::ScheduleKind kind, double dropout,
                            bool sequence_parallel) {
    RankedGpt gpt(world(), layout, kind, {.zero = ZeroStage::none}, spec(dropout),
                  mixed_precision(DType::f32), sequence_parallel);
    gpt.compute_gradients(kConsumed);
    return gpt.gradients();
  };
  const int ranks = world()->size();
  for (grid::Layout layout : layouts_of(ranks)) {
    if (layout.pipeline == 1) continue;
    SCOPED_TRACE(to_string(layout));
    const int chunks = std::exchange(layout.chunks, 1);
    const auto expect_same = [&](double dropout, bool sequence_parallel) {
      using enum pipeline::ScheduleKind;
      const LogicalTensors plain = gradients(layout, one_f_one_b, dropout, sequence_parallel);
      EXPECT_EQ(gradients(layout, zero_bubble, dropout, sequence_parallel), plain);
      if (chunks == 1) return;
      grid::Layout in_chunks = layout;
      in_chunks.chunks = chunks;
      EXPECT_EQ(gradients(in_chunks, interleaved, dropout, sequence_parallel), plain);
    };
    expect_same(0.1, /*sequence_parallel=*/false);
    // Without dropout the gradient itself is copied, on any number of ranks.
    if (ranks == 2) expect_same(0.0, /*sequence_parallel=*/false);
    if (layout.tensor == 1) continue;
    for (const double dropout : {0.0, 0.1}) expect_same(dropout, /*sequence_parallel=*/true);
  }
}

TEST(Gpt2LayoutGradient, OfTheKeyBiasIsRoundingNoise) {
  const int ranks = world()->size();
  for (const grid::Layout& layout : layouts_of(ranks)) {
    SCOPED_TRACE(to_string(layout));
    RankedGpt gpt(world(), layout, {.zero = ZeroStage::none});
    gpt.compute_gradients(kConsumed);
    for (const auto& [name, gradient] : gpt.gradients()) {
      if (!name.ends_with("qkv/bias")) continue;
      const auto third = gradient.size() / 3;
      const std::span query(gradient.data(), third), key(gradient.data() + third, third);
      EXPECT_LT(norm(key), kTolerance32 * norm(query)) << name;
    }
  }
}

TEST_P(LayoutGradient, InDoubleAgreesToRounding) {
  const auto serial = RankedGpt::serial({}, DType::f64, spec());
  serial->compute_gradients(kConsumed);
  const LogicalTensors expected = serial->gradients();
  const int ranks = world()->size();
  const grid::Layout layout = layouts_of(ranks).back();
  RankedGpt gpt(world(), layout, {.zero = ZeroStage::none}, spec(), mixed_precision(DType::f64));
  gpt.compute_gradients(kConsumed);
  for (const auto& [name, gradient] : gpt.gradients())
    EXPECT_LT(distance(gradient, expected.at(name)), 1e-13 * norm(expected.at(name))) << name;
}

using model::Recompute;
using What = Recompute::What;

/// Trains one batch on `layout`, keeping everything and computing everything again.
void expect_same_bits(const model::ModelSpec& spec, const grid::Layout& layout, DType dtype,
                      bool sequence_parallel) {
  SCOPED_TRACE(fmt::format("{} in {}{}", to_string(layout), name_of(dtype),
                           sequence_parallel ? ", the sequence cut" : ""));
  const auto run = [&](const Recompute& recompute) {
    RankedGpt gpt(world(), layout, RankedGpt::schedule_for(layout), {.zero = ZeroStage::none}, spec,
                  mixed_precision(dtype), sequence_parallel, recompute);
    const double loss = gpt.compute_gradients(/*consumed=*/40);
    return std::pair(loss, gpt.gradients());
  };
  const auto kept = run({});
  EXPECT_EQ(run({What::norms}), kept);
  for (const bool partition : {false, true})
    for (const bool offload : {false, true})
      for (Recompute recompute :
           {Recompute{What::uniform, 1}, Recompute{What::uniform, 3}, Recompute{What::block, 1}}) {
        recompute.partition = partition && layout.tensor > 1 && !sequence_parallel;
        recompute.offload = offload;
        if (recompute.partition != partition) continue;
        EXPECT_EQ(run(recompute), kept)
            << "method " << static_cast<int>(recompute.what) << " of " << recompute.layers
            << " layers" << (partition ? ", shared" : "") << (offload ? ", on the host" : "");
      }
}

class RecomputeLayouts : public EveryModel {};
TRIREME_EVERY_MODEL(RecomputeLayouts);

TEST_P(RecomputeLayouts, ChangesNoBitOfLossOrGradient) {
  for (const grid::Layout& layout : layouts_of(world()->size())) {
    expect_same_bits(spec(), layout, DType::f32, /*sequence_parallel=*/false);
    expect_same_bits(spec(), layout, DType::bf16, /*sequence_parallel=*/false);
    if (layout.tensor > 1) expect_same_bits(spec(), layout, DType::f32, /*sequence_parallel=*/true);
  }
}

}  // namespace
}  // namespace trireme::test
