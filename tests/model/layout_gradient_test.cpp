// The gradients of the model cut over tensor, data and pipeline ranks against the serial ones.
#include <gtest/gtest.h>

#include "ranked_gpt.hpp"

namespace trireme::test {
namespace {

constexpr double kTolerance = 1e-5;  // of each tensor's norm, in fp32
constexpr std::int64_t kConsumed = 40;

TEST(LayoutGradient, EqualsTheSerialOne) {
  const auto serial = RankedGpt::serial();
  const double serial_loss = serial->compute_gradients(kConsumed);
  const LogicalTensors expected = serial->gradients();
  const int ranks = comm::MpiCommunicator::world()->size();
  for (const grid::Layout& layout : layouts_of(ranks)) {
    SCOPED_TRACE(to_string(layout));
    RankedGpt gpt(comm::MpiCommunicator::world(), layout, {.shard_state = false});
    EXPECT_NEAR(gpt.compute_gradients(kConsumed), serial_loss, 1e-6 * serial_loss);
    for (const auto& [name, gradient] : gpt.gradients())
      EXPECT_LT(distance(without_key(name, gradient), without_key(name, expected.at(name))),
                kTolerance * norm(without_key(name, expected.at(name))))
          << name;
  }
}

// Each weight's gradient is summed over micro-batches in the same order; only the order of other
// work changes.
TEST(LayoutGradient, IsTheSameBitByBitUnderEverySchedule) {
  const auto gradients = [](const grid::Layout& layout, pipeline::ScheduleKind kind,
                            double dropout) {
    model::ModelConfig config = small_gpt();
    config.attention_dropout = config.hidden_dropout = dropout;
    RankedGpt gpt(comm::MpiCommunicator::world(), layout, kind, {.shard_state = false}, config);
    gpt.compute_gradients(kConsumed);
    return gpt.gradients();
  };
  const int ranks = comm::MpiCommunicator::world()->size();
  for (grid::Layout layout : layouts_of(ranks)) {
    if (layout.pipeline == 1) continue;
    SCOPED_TRACE(to_string(layout));
    const int chunks = std::exchange(layout.chunks, 1);
    // Without dropout the gradient itself is copied, on any number of ranks.
    for (const double dropout : ranks == 2 ? std::vector{0.0, 0.1} : std::vector{0.1}) {
      const LogicalTensors plain = gradients(layout, pipeline::ScheduleKind::one_f_one_b, dropout);
      EXPECT_EQ(gradients(layout, pipeline::ScheduleKind::zero_bubble, dropout), plain);
      if (chunks == 1) continue;
      grid::Layout interleaved = layout;
      interleaved.chunks = chunks;
      EXPECT_EQ(gradients(interleaved, pipeline::ScheduleKind::interleaved, dropout), plain);
    }
  }
}

TEST(LayoutGradient, OfTheKeyBiasIsRoundingNoise) {
  const int ranks = comm::MpiCommunicator::world()->size();
  for (const grid::Layout& layout : layouts_of(ranks)) {
    SCOPED_TRACE(to_string(layout));
    RankedGpt gpt(comm::MpiCommunicator::world(), layout, {.shard_state = false});
    gpt.compute_gradients(kConsumed);
    for (const auto& [name, gradient] : gpt.gradients()) {
      if (!name.ends_with("qkv/bias")) continue;
      const auto third = gradient.size() / 3;
      const std::span query(gradient.data(), third), key(gradient.data() + third, third);
      EXPECT_LT(norm(key), kTolerance * norm(query)) << name;
    }
  }
}

TEST(LayoutGradient, InDoubleAgreesToRounding) {
  const auto serial = RankedGpt::serial({}, DType::f64);
  serial->compute_gradients(kConsumed);
  const LogicalTensors expected = serial->gradients();
  const int ranks = comm::MpiCommunicator::world()->size();
  const grid::Layout layout = layouts_of(ranks).back();
  RankedGpt gpt(comm::MpiCommunicator::world(), layout, {.shard_state = false}, small_gpt(),
                DType::f64);
  gpt.compute_gradients(kConsumed);
  for (const auto& [name, gradient] : gpt.gradients())
    EXPECT_LT(distance(gradient, expected.at(name)), 1e-13 * norm(expected.at(name))) << name;
}

}  // namespace
}  // namespace trireme::test
