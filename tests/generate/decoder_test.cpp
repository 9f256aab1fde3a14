#include "generate/decoder.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "model/stage/pipeline_stage.hpp"
#include "tiny_gpt.hpp"

namespace trireme::generate {
namespace {

std::vector<std::int32_t> random_ids(std::int64_t count, std::int64_t vocab) {
  std::vector<std::int32_t> ids(count);
  for (std::int64_t i = 0; i < count; ++i)
    ids[i] = static_cast<std::int32_t>(philox_uniform(11, 0, i) * static_cast<double>(vocab));
  return ids;
}

/// The logits [T, vocab] of all positions of `ids` from the training stage without dropout.
std::vector<double> stage_logits(TinyGpt& gpt, const std::vector<std::int32_t>& ids) {
  comm::SerialCommunicator serial;
  model::StageConfig config{.spec = gpt.spec, .precision = gpt.parameters.precision()};
  config.spec.sequence = static_cast<std::int64_t>(ids.size());
  model::PipelineStage stage(config, *gpt.backend, serial, gpt.parameters, gpt.layout, 0, 1);
  const std::vector<std::int32_t> labels(ids.size(), -1);
  stage.load(0, {.ids = ids, .labels = labels});
  stage.forward(0, /*training=*/false);
  const Tensor logits = stage.logits();
  return dispatch(logits.dtype, [&](auto element) {
    const auto* values = logits.as<decltype(element)>();
    return std::vector<double>(values, values + logits.size());
  });
}

/// The largest difference between the decoder's logits after each prefix of `ids` and the stage's,
/// relative to the largest logit.
double largest_error(TinyGpt& gpt, Decoder& decoder, const std::vector<std::int32_t>& ids) {
  const std::vector<double> expected = stage_logits(gpt, ids);
  double largest = 0.0, error = 0.0;
  for (std::size_t length = 1; length <= ids.size(); ++length) {
    const auto logits = decoder.logits(std::span(ids).first(length));
    for (std::size_t id = 0; id < logits.size(); ++id) {
      const double reference = expected[(length - 1) * logits.size() + id];
      largest = std::max(largest, std::abs(reference));
      error = std::max(error, std::abs(logits[id] - reference));
    }
  }
  EXPECT_GT(largest, 1.0) << "the test model's logits say nothing";
  return error / largest;
}

struct Case {
  DType dtype;
  bool embedding_layernorm;
  Cache cache;
  double tolerance;
};

class DecoderTest : public testing::TestWithParam<Case> {};

TEST_P(DecoderTest, GivesTheLogitsOfTheTrainingStage) {
  model::Gpt2Config config = TinyGpt::default_config();
  config.embedding_layernorm = GetParam().embedding_layernorm;
  TinyGpt gpt(config, GetParam().dtype);
  Decoder decoder(*gpt.backend, gpt.parameters, gpt.spec, GetParam().cache);
  EXPECT_LT(largest_error(gpt, decoder, random_ids(config.positions, config.vocab)),
            GetParam().tolerance);
}

INSTANTIATE_TEST_SUITE_P(Kinds, DecoderTest,
                         testing::Values(Case{DType::f32, false, Cache::keys_and_values, 1e-5},
                                         Case{DType::f32, true, Cache::keys_and_values, 1e-5},
                                         Case{DType::f64, false, Cache::keys_and_values, 1e-13},
                                         Case{DType::f64, true, Cache::none, 1e-13},
                                         Case{DType::f32, false, Cache::none, 1e-5}));

TEST(Decoder, ReadsAPromptLongerThanOnePass) {
  model::Gpt2Config config = TinyGpt::default_config();
  config.layers = 1;
  config.positions = 1200;
  TinyGpt gpt(config, DType::f64);
  const auto ids = random_ids(1100, config.vocab);
  const std::vector<double> expected = stage_logits(gpt, ids);
  Decoder decoder(*gpt.backend, gpt.parameters, gpt.spec);
  const auto logits = decoder.logits(ids);
  const std::size_t last = (ids.size() - 1) * logits.size();
  for (std::size_t id = 0; id < logits.size(); ++id)
    EXPECT_NEAR(logits[id], expected[last + id], 1e-11) << "id " << id;
}

TEST(Decoder, ContextsMayChangeBetweenCalls) {
  TinyGpt gpt(TinyGpt::default_config(), DType::f64);
  Decoder cached(*gpt.backend, gpt.parameters, gpt.spec);
  Decoder uncached(*gpt.backend, gpt.parameters, gpt.spec, Cache::none);
  const std::vector<std::vector<std::int32_t>> contexts = {
      {1, 2, 3, 4, 5, 6}, {1, 2, 3, 4, 5, 6}, {1, 2, 9, 4, 5, 6}, {1, 2}, {1, 2, 9, 4}, {7}};
  for (std::size_t i = 0; i < contexts.size(); ++i) {
    const auto expected = uncached.logits(contexts[i]);
    const auto logits = cached.logits(contexts[i]);
    for (std::size_t id = 0; id < logits.size(); ++id)
      ASSERT_NEAR(logits[id], expected[id], 1e-12) << "context " << i << ", id " << id;
  }
}

TEST(Decoder, RefusesContextsThatItCannotHold) {
  TinyGpt gpt;
  Decoder decoder(*gpt.backend, gpt.parameters, gpt.spec);
  EXPECT_EQ(decoder.capacity(), 24);
  EXPECT_EQ(decoder.logits(random_ids(24, 37)).size(), 37u);
  EXPECT_THROW(decoder.logits(random_ids(25, 37)), InternalError);
  EXPECT_THROW(decoder.logits({}), InternalError);
  EXPECT_THROW(decoder.logits(std::vector<std::int32_t>{37}), InternalError);
  EXPECT_THROW(decoder.logits(std::vector<std::int32_t>{-1}), InternalError);
}

TEST(SerialCommunicator, LeavesDataAloneAndHasNoPeer) {
  comm::SerialCommunicator serial;
  double value = 2.5;
  serial.all_reduce(&value, 1, DType::f64, comm::Reduce::sum);
  serial.reduce_scatter(&value, 1, DType::f64);
  serial.all_gather(&value, 1, DType::f64);
  serial.broadcast(&value, sizeof value, 0);
  EXPECT_EQ(value, 2.5);
  EXPECT_EQ(serial.all_reduce(4.0, comm::Reduce::max), 4.0);
  EXPECT_EQ(serial.size(), 1);
  EXPECT_EQ(serial.rank(), 0);
  EXPECT_THROW(serial.send(&value, sizeof value, 1, 0), InternalError);
  EXPECT_THROW(serial.receive(&value, sizeof value, 1, 0), InternalError);
}

}  // namespace
}  // namespace trireme::generate
