// The whole model's gradient against finite differences, in fp64.
#include <gtest/gtest.h>

#include <random>

#include "model/families/registry.hpp"
#include "serial_gpt.hpp"
#include "tensors.hpp"
#include "toy_family.hpp"

namespace trireme::test {
namespace {

/// Small enough to run thousands of times; no two extents are equal, so that no transposition goes
/// unnoticed.
model::Gpt2Config tiny(double dropout, bool embedding_layernorm) {
  return {.layers = 2,
          .hidden = 12,
          .heads = 3,
          .ffn = 20,
          .sequence = 6,
          .positions = 8,
          .vocab = 11,
          .attention_dropout = dropout,
          .hidden_dropout = dropout,
          .embedding_layernorm = embedding_layernorm};
}

/// The same, told where documents end.
model::Gpt2Config with_resets(model::Gpt2Config config) {
  config.reset_positions = config.reset_attention = true;
  config.eod = 4;
  return config;
}

/// Two blocks of the toy family.
model::ModelSpec tiny_toy() {
  model::ModelSpec spec = toy_spec(/*dropout=*/0.1);
  spec.blocks = {spec.blocks[0], spec.blocks[2]};
  spec.sequence = 6;
  return spec;
}

/// Grouped heads that are wider than hidden / heads, with norms, biases and dropout.
model::ModelSpec tiny_llama(model::QkNorm qk_norm) {
  return model::llama_spec(
      {.layers = 2,
       .hidden = 12,
       .heads = 6,
       .kv_heads = 2,
       .head_dim = 4,
       .ffn = 10,
       .sequence = 6,
       .positions = 8,
       .vocab = 11,
       .activation = "geglu",
       .qk_norm = qk_norm,
       .qkv_bias = true,
       .attention_dropout = 0.1,
       .hidden_dropout = 0.1,
       .documents = {.reset_positions = true, .reset_attention = true, .eod = 4}});
}

/// A sliding window of three tokens, within documents.
model::ModelSpec tiny_window() {
  model::ModelSpec spec = tiny_llama(model::QkNorm::none);
  for (model::BlockSpec& block : spec.blocks) block.attention.window = 3;
  return spec;
}

/// A factor of the sum of normalized token embeddings and learned positions.
model::ModelSpec tiny_scaled_embedding() {
  model::ModelSpec spec = model::gpt2_spec(tiny(0.1, /*embedding_layernorm=*/true));
  spec.embedding.scale = 2.5;
  return spec;
}

/// muP's multipliers.
model::ModelSpec tiny_mup() {
  model::ModelSpec spec = tiny_llama(model::QkNorm::head);
  spec.embedding.scale = 3.0;
  spec.head.logit_scale = 0.4;
  for (model::BlockSpec& block : spec.blocks) block.attention.query_scale = 1.7;
  return spec;
}

struct Configuration {
  model::ModelSpec model;
  std::int64_t max_loss_tokens = 1000;
};

class Gradient : public ::testing::TestWithParam<Configuration> {};

TEST_P(Gradient, AgreesWithFiniteDifferences) {
  constexpr int kBatch = 2;
  constexpr int kElements = 16;   // of each tensor
  constexpr double kStep = 1e-3;  // error of the quotient about step^4 + 1e-16 / step
  constexpr double kTolerance = 1e-7;
  const model::ModelSpec& spec = GetParam().model;
  SerialGpt gpt(spec, kBatch, DType::f64, GetParam().max_loss_tokens);
  std::mt19937_64 random(20);
  std::normal_distribution<double> normal(0.0, 0.3);
  for (double& weight :
       std::span(gpt.parameters().weights().as<double>(), gpt.parameters().placement().size))
    weight = normal(random);

  std::vector<std::int32_t> ids, labels;
  std::uniform_int_distribution<std::int32_t> token(0, static_cast<int>(spec.vocab) - 1);
  for (int t = 0; t < spec.sequence * kBatch; ++t) {
    ids.push_back(token(random));
    labels.push_back(t % 5 == 3 ? -1 : token(random));
  }
  const model::MicroBatch batch{.ids = ids, .labels = labels, .first_sample = 7};
  gpt.backward(batch);

  for (const model::Parameter& parameter : gpt.parameters().table()) {
    const auto [weight, gradient_view] = gpt.parameters()[parameter.name];
    const std::vector<double> gradient = to_doubles(gradient_view);
    double scale = 0.0;
    for (double value : gradient) scale = std::max(scale, std::abs(value));
    EXPECT_GT(scale, 1e-4) << parameter.name << " has no gradient to speak of";
    std::uniform_int_distribution<std::int64_t> pick(0, weight.size() - 1);
    for (int i = 0; i < kElements; ++i) {
      const std::int64_t index = pick(random);
      double& element = weight.as<double>()[index];
      const double original = element;
      const auto loss = [&](double steps) {
        element = original + steps * kStep;
        return gpt.forward(batch);
      };
      const double slope = (8 * (loss(1) - loss(-1)) - (loss(2) - loss(-2))) / (12 * kStep);
      element = original;
      EXPECT_NEAR(gradient[index], slope, kTolerance * scale)
          << parameter.name << "[" << index << "]";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Configurations, Gradient,
                         ::testing::Values(Configuration{gpt2_spec(tiny(0.0, false))},
                                           Configuration{gpt2_spec(tiny(0.1, false))},
                                           Configuration{gpt2_spec(tiny(0.1, true))},
                                           Configuration{gpt2_spec(tiny(0.0, false)), 5},
                                           Configuration{gpt2_spec(with_resets(tiny(0.1, false)))},
                                           Configuration{tiny_llama(model::QkNorm::head)},
                                           Configuration{tiny_llama(model::QkNorm::width)},
                                           Configuration{tiny_mup()},
                                           Configuration{tiny_scaled_embedding()},
                                           Configuration{tiny_window()},
                                           Configuration{tiny_toy(), 5}));

TEST(Gradient, AddsToWhatIsThere) {
  const model::Gpt2Config config = tiny(0.0, false);
  SerialGpt gpt(config, 1, DType::f64);
  gpt.parameters().initialize(3);
  const std::vector<std::int32_t> ids{1, 2, 3, 4, 5, 6}, labels{2, 3, 4, 5, 6, 7};
  const model::MicroBatch batch{.ids = ids, .labels = labels};
  gpt.backward(batch);
  const std::vector<double> once = to_doubles(gpt.parameters().gradients());
  gpt.add_gradients(batch, 1);
  std::vector<double> half = to_doubles(gpt.parameters().gradients());
  for (double& value : half) value /= 2;
  EXPECT_LT(distance(half, once), 1e-14 * norm(once));
}

TEST(Documents, AreAsIfAlone) {
  // Documents 1 2 4 and 3 5 1 in one sample; then the second in its own sample.
  const auto losses = [](const model::Gpt2Config& config) {
    SerialGpt gpt(config, 1, DType::f64);
    gpt.parameters().initialize(3);
    const std::vector<std::int32_t> together{1, 2, 4, 3, 5, 1}, alone{3, 5, 1, 9, 9, 9};
    return std::pair{
        gpt.forward({.ids = together, .labels = std::vector<std::int32_t>{-1, -1, -1, 5, 1, 7}}),
        gpt.forward({.ids = alone, .labels = std::vector<std::int32_t>{5, 1, 7, -1, -1, -1}})};
  };
  const auto [reset, expected] = losses(with_resets(tiny(0.0, false)));
  EXPECT_NEAR(reset, expected, 1e-13);
  model::Gpt2Config one = with_resets(tiny(0.0, false));
  one.reset_positions = false;
  EXPECT_GT(std::abs(losses(one).first - expected), 1e-6);
  one = with_resets(tiny(0.0, false));
  one.reset_attention = false;
  EXPECT_GT(std::abs(losses(one).first - expected), 1e-6);
}

TEST(Window, HidesEarlierTokens) {
  const std::vector<std::int32_t> ids{1, 2, 3, 5, 6, 7};
  // How the loss of the token at `place` changes with the token at 1, by one layer.
  const auto change = [&](std::int64_t window, std::size_t place) {
    model::ModelSpec spec = tiny_llama(model::QkNorm::none);
    spec.blocks.resize(1);
    spec.blocks[0].attention.window = window;
    spec.documents = {};
    SerialGpt gpt(spec, 1, DType::f64);
    gpt.parameters().initialize(3);
    std::vector<std::int32_t> labels(6, -1), other = ids;
    labels[place] = 4;
    other[1] = 8;
    return std::abs(gpt.forward({.ids = other, .labels = labels}) -
                    gpt.forward({.ids = ids, .labels = labels}));
  };
  EXPECT_GT(change(0, 4), 1e-9);
  EXPECT_GT(change(3, 3), 1e-9);
  EXPECT_EQ(change(3, 4), 0.0);
  EXPECT_GT(change(4, 4), 1e-9);
  EXPECT_GT(change(6, 5), 1e-9);
}

TEST(Dropout, FollowsTheSampleAndIsOffInEvaluation) {
  SerialGpt gpt(tiny(0.1, false), 1, DType::f64);
  gpt.parameters().initialize(3);
  const std::vector<std::int32_t> ids{1, 2, 3, 4, 5, 6}, labels{2, 3, 4, 5, 6, 7};
  const auto loss = [&](std::uint64_t sample, bool training) {
    gpt.stage().begin_batch();
    gpt.stage().load(0, {.ids = ids, .labels = labels, .first_sample = sample});
    gpt.stage().forward(0, training);
    return gpt.stage().loss_sum();
  };
  EXPECT_EQ(loss(5, true), loss(5, true));
  EXPECT_NE(loss(5, true), loss(6, true));
  EXPECT_EQ(loss(5, false), loss(6, false));
  EXPECT_NE(loss(5, true), loss(5, false));
}

}  // namespace
}  // namespace trireme::test
