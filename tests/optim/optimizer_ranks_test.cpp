// The optimizer over ranks: gradient norm, ZeRO-1, buckets, the tied embedding.
#include <gtest/gtest.h>

#include "../model/ranked_gpt.hpp"

namespace trireme::test {
namespace {

using model::ZeroStage;

constexpr int kSteps = 2;
constexpr double kLearningRate = 1e-2;

/// An eps above rounding noise: where a gradient is zero but for rounding, as that of the key bias,
/// Adam must not make whole steps of noise.
optim::OptimizerConfig smooth() { return {.eps = 1e-3}; }

std::vector<grid::Layout> layouts() { return layouts_of(world()->size()); }

std::vector<grid::Layout> layouts_with_data_ranks() {
  std::vector<grid::Layout> all = layouts();
  std::erase_if(all, [](const grid::Layout& layout) { return layout.data == 1; });
  return all;
}

LogicalTensors train(const model::ModelSpec& spec, const grid::Layout& layout,
                     const optim::OptimizerConfig& config) {
  RankedGpt gpt(world(), layout, config, spec);
  for (int step = 0; step < kSteps; ++step) gpt.step(kLearningRate);
  return gpt.weights();
}

/// Every tensor to `tolerance` of its norm.
void expect_close(const LogicalTensors& ours, const LogicalTensors& expected, double tolerance) {
  for (const auto& [name, tensor] : ours)
    EXPECT_LE(distance(tensor, expected.at(name)), tolerance * norm(expected.at(name))) << name;
}

class OptimizerRanks : public EveryModel {};
TRIREME_EVERY_MODEL(OptimizerRanks);

TEST_P(OptimizerRanks, NormCountsEachElementOnce) {
  const auto serial = RankedGpt::serial({}, DType::f32, spec());
  serial->compute_gradients(0);
  const double expected = serial->optimizer().gradient_norm();
  for (const grid::Layout& layout : layouts()) {
    for (const ZeroStage zero : {ZeroStage::none, ZeroStage::optimizer_state}) {
      SCOPED_TRACE(to_string(layout) + (zero == ZeroStage::none ? ", ZeRO-0" : ", ZeRO-1"));
      RankedGpt gpt(world(), layout, {.zero = zero}, spec());
      gpt.compute_gradients(0);
      const double norm = gpt.optimizer().gradient_norm();
      EXPECT_NEAR(norm, expected, 1e-6 * expected);
      EXPECT_EQ(norm, world()->all_reduce(norm, comm::Reduce::max)) << "ranks disagree";
    }
  }
}

TEST_P(OptimizerRanks, ParameterNormAndZerosCountEachElementOnce) {
  const auto serial = RankedGpt::serial({}, DType::f32, spec());
  serial->compute_gradients(0);
  double squares = 0.0;
  for (const auto& [name, tensor] : serial->weights())
    for (const double weight : tensor) squares += weight * weight;
  for (const grid::Layout& layout : layouts()) {
    for (const ZeroStage zero : {ZeroStage::none, ZeroStage::optimizer_state}) {
      SCOPED_TRACE(to_string(layout) + (zero == ZeroStage::none ? ", ZeRO-0" : ", ZeRO-1"));
      RankedGpt gpt(world(), layout, {.zero = zero}, spec());
      gpt.compute_gradients(0);
      EXPECT_NEAR(gpt.optimizer().parameter_norm(), std::sqrt(squares), 1e-9 * std::sqrt(squares));
      // Of this layout: whether a sum of terms is exactly zero depends on their order.
      std::int64_t zeros = 0;
      for (const auto& [name, tensor] : gpt.gradients())
        zeros += std::count(tensor.begin(), tensor.end(), 0.0);
      // Rows of the position embedding that no sample reaches have no gradient, and words that
      // none has where the head is not tied.
      ASSERT_EQ(zeros > 0, is_gpt2() || !spec().head.tied);
      EXPECT_EQ(gpt.optimizer().gradient_zeros(), zeros);
    }
  }
}

using optim::OptimizerType;

/// Trains by a rule on every layout: the weights are those of the serial model.
void expect_serial_weights(const model::ModelSpec& spec, OptimizerType type) {
  optim::OptimizerConfig config = smooth();
  config.type = type;
  config.momentum = 0.9;
  config.bucket = 5000;  // cuts parameters
  // Newton-Schulz multiplies rounding in directions without a gradient by up to 3.4445^5.
  const double tolerance = type == OptimizerType::muon  ? 2e-3
                           : type == OptimizerType::sgd ? 2e-4
                                                        : 2e-5;
  const auto serial = RankedGpt::serial(config, DType::f32, spec);
  const LogicalTensors start = serial->weights();
  for (int step = 0; step < kSteps; ++step) serial->step(kLearningRate);
  const LogicalTensors expected = serial->weights();
  EXPECT_GT(distance(expected.at("embedding/word"), start.at("embedding/word")),
            0.001 * norm(start.at("embedding/word")));
  for (const grid::Layout& layout : layouts()) {
    SCOPED_TRACE(to_string(layout));
    const LogicalTensors weights = train(spec, layout, config);
    for (const auto& [name, tensor] : weights)
      EXPECT_LE(
          distance(tensor, expected.at(name)),
          tolerance * distance(expected.at(name), start.at(name)) + 1e-7 * norm(expected.at(name)))
          << name;
  }
}

class EveryRule : public EveryModel {};
TRIREME_EVERY_MODEL(EveryRule);

TEST_P(EveryRule, WeightsAfterStepsEqualTheSerialOnes) {
  for (const auto type : {OptimizerType::adamw, OptimizerType::adam, OptimizerType::sgd,
                          OptimizerType::lamb, OptimizerType::muon}) {
    SCOPED_TRACE(name_of(type));
    expect_serial_weights(spec(), type);
  }
}

TEST_P(OptimizerRanks, NormsOfLayersAreThoseOfTheSerialModel) {
  const auto layer_norms = [](RankedGpt& gpt, optim::LayerNorms& norms) {
    gpt.compute_gradients(0);
    gpt.optimizer().update({.learning_rate = kLearningRate}, &norms);
  };
  optim::OptimizerConfig config = smooth();
  config.layer_norms = true;
  config.clip = 0;
  const auto serial = RankedGpt::serial(config, DType::f32, spec());
  const LogicalTensors before = serial->weights();
  optim::LayerNorms expected;
  layer_norms(*serial, expected);
  const LogicalTensors after = serial->weights(), gradients = serial->gradients();
  // The embeddings come before the layers' norms, and the final norm after.
  std::vector<double> update(expected.update.size()), weights(update), gradient(update);
  for (const model::Parameter& parameter : serial->parameters().table()) {
    std::size_t place = static_cast<std::size_t>(parameter.layer);
    if (parameter.stage == model::StagePlacement::first_stage) place = update.size() - 2;
    if (parameter.stage == model::StagePlacement::last_stage) place = update.size() - 1;
    const std::string& name = parameter.name;
    update[place] += std::pow(distance(after.at(name), before.at(name)), 2);
    weights[place] += std::pow(norm(after.at(name)), 2);
    gradient[place] += std::pow(norm(gradients.at(name)), 2);
  }
  for (std::size_t i = 0; i < update.size(); ++i) {
    EXPECT_NEAR(expected.update[i], std::sqrt(update[i]), 1e-6 * expected.update[i]) << i;
    EXPECT_NEAR(expected.parameters[i], std::sqrt(weights[i]), 1e-6 * expected.parameters[i]) << i;
    EXPECT_NEAR(expected.gradient[i], std::sqrt(gradient[i]), 1e-6 * expected.gradient[i]) << i;
  }
  for (const grid::Layout& layout : layouts()) {
    SCOPED_TRACE(to_string(layout));
    config.bucket = 5000;
    RankedGpt gpt(world(), layout, config, spec());
    optim::LayerNorms norms;
    layer_norms(gpt, norms);
    for (std::size_t i = 0; i < update.size(); ++i) {
      EXPECT_NEAR(norms.gradient[i], expected.gradient[i], 1e-5 * expected.gradient[i]) << i;
      EXPECT_NEAR(norms.update[i], expected.update[i], 1e-4 * expected.update[i]) << i;
      EXPECT_NEAR(norms.parameters[i], expected.parameters[i], 1e-6 * expected.parameters[i]) << i;
    }
  }
}

// The sum of two numbers does not depend on their order, so that two data ranks give the same bits;
// a norm far below `clip` does not scale them.
TEST_P(OptimizerRanks, ShardedStateGivesTheWeightsOfWholeState) {
  for (const grid::Layout& layout : layouts_with_data_ranks()) {
    SCOPED_TRACE(to_string(layout));
    optim::OptimizerConfig config = smooth();
    config.clip = 1e3;
    const LogicalTensors sharded = train(spec(), layout, config);
    config.zero = ZeroStage::none;
    const LogicalTensors whole = train(spec(), layout, config);
    if (layout.data <= 2)
      EXPECT_EQ(sharded, whole);
    else
      expect_close(sharded, whole, 1e-6);
  }
}

TEST_P(OptimizerRanks, ShardedMomentsAreTheWholeOnes) {
  for (const grid::Layout& layout : layouts_with_data_ranks()) {
    SCOPED_TRACE(to_string(layout));
    LogicalTensors momentum[2];
    for (const ZeroStage zero : {ZeroStage::none, ZeroStage::optimizer_state}) {
      RankedGpt gpt(world(), layout, {.zero = zero}, spec());
      gpt.step(kLearningRate);
      momentum[static_cast<int>(zero)] = gpt.momentum();
      const std::int64_t owned = gpt.parameters().placement().owned_size;
      EXPECT_EQ(gpt.optimizer().states()[0].tensor.size(),
                zero == ZeroStage::none ? owned : owned / layout.data);
    }
    for (auto& [name, tensor] : momentum[1])
      EXPECT_LE(distance(without_key(name, tensor), without_key(name, momentum[0].at(name))),
                1e-5 * norm(without_key(name, momentum[0].at(name))))
          << name;
  }
}

TEST_P(OptimizerRanks, SmallBucketsGiveTheWeightsOfOneBucket) {
  for (const grid::Layout& layout : layouts_with_data_ranks()) {
    for (const ZeroStage zero : {ZeroStage::none, ZeroStage::optimizer_state}) {
      SCOPED_TRACE(to_string(layout) + (zero == ZeroStage::none ? ", ZeRO-0" : ", ZeRO-1"));
      optim::OptimizerConfig config = smooth();
      config.zero = zero;
      config.clip = 1e3;
      const LogicalTensors one = train(spec(), layout, config);
      config.bucket = 300;
      const LogicalTensors many = train(spec(), layout, config);
      if (layout.data <= 2)
        EXPECT_EQ(many, one);
      else
        expect_close(many, one, 1e-6);
    }
  }
}

TEST_P(OptimizerRanks, TiedCopiesStayEqual) {
  if (!spec().head.tied) GTEST_SKIP() << "the head has weights of its own";
  int checked = 0;
  for (const grid::Layout& layout : layouts()) {
    if (layout.pipeline == 1) continue;
    SCOPED_TRACE(to_string(layout));
    RankedGpt gpt(world(), layout, {}, spec());
    for (int step = 0; step < kSteps; ++step) gpt.step(kLearningRate);
    gpt.compute_gradients(0);
    comm::Communicator* stages = gpt.groups().embedding.get();
    if (!stages) continue;
    const auto [weight, gradient] = gpt.parameters()["embedding/word"];
    // Only the first stage reduces over data ranks: there the gradients differ afterwards.
    std::vector<Tensor> copies{weight};
    if (layout.data == 1) copies.push_back(gradient);
    for (const Tensor& copy : copies) {
      const std::vector<double> own = to_doubles(copy);
      std::vector<double> first = own;
      stages->broadcast(first.data(), first.size() * sizeof(double), /*root=*/0);
      EXPECT_EQ(own, first);
      EXPECT_GT(norm(own), 0.0);
      ++checked;
    }
  }
  EXPECT_GT(world()->all_reduce(checked, comm::Reduce::max), 0);
}

}  // namespace
}  // namespace trireme::test
