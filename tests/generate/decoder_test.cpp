#include "generate/decoder.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "generate/batch_decoder.hpp"
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

/// The largest difference between what `logits_after` gives for each prefix of `ids` and the
/// stage's logits, relative to the largest logit.
template <typename LogitsAfter>
double largest_error(TinyGpt& gpt, const std::vector<std::int32_t>& ids,
                     const LogitsAfter& logits_after) {
  const std::vector<double> expected = stage_logits(gpt, ids);
  double largest = 0.0, error = 0.0;
  for (std::size_t length = 1; length <= ids.size(); ++length) {
    const auto logits = logits_after(std::span(ids).first(length));
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
  double tolerance;
  std::int64_t window = 0;
};

class DecoderTest : public testing::TestWithParam<Case> {};

TEST_P(DecoderTest, GivesTheLogitsOfTheTrainingStage) {
  model::Gpt2Config config = TinyGpt::default_config();
  config.embedding_layernorm = GetParam().embedding_layernorm;
  TinyGpt gpt(config, GetParam().dtype, GetParam().window);
  const auto ids = random_ids(config.positions, config.vocab);
  Decoder decoder(*gpt.backend, gpt.parameters, gpt.spec);
  EXPECT_LT(largest_error(gpt, ids, [&](auto context) { return decoder.logits(context); }),
            GetParam().tolerance);
  BatchDecoder cached(*gpt.backend, gpt.parameters, gpt.spec, {.sequences = 1});
  const auto last_alone = [&](auto context) {
    return cached.run({{.past = std::ssize(context) - 1, .ids = {context.back()}}})[0];
  };
  EXPECT_LT(largest_error(gpt, ids, last_alone), GetParam().tolerance);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, DecoderTest,
    testing::Values(Case{DType::f32, false, 1e-5}, Case{DType::f32, true, 1e-5},
                    Case{DType::f64, false, 1e-13}, Case{DType::f64, true, 1e-13},
                    Case{DType::f64, false, 1e-13, 1}, Case{DType::f64, false, 1e-13, 7}));

// Chunks of one token and of more, with and without a past, on either side of the length from which
// attention runs without the cache, and of the length of its blocks.
class PiecesTest : public testing::TestWithParam<std::int64_t> {};

TEST_P(PiecesTest, APromptIsReadInPiecesOfAnyLength) {
  model::Gpt2Config config = TinyGpt::default_config();
  config.layers = 1;
  config.positions = 300;
  TinyGpt gpt(config, DType::f64, /*window=*/GetParam());
  const auto ids = random_ids(260, config.vocab);
  const std::vector<double> expected = stage_logits(gpt, ids);
  BatchDecoder decoder(*gpt.backend, gpt.parameters, gpt.spec,
                       {.sequences = 2, .pass_tokens = 200});
  for (const std::int64_t first : {1, 8, 9, 64, 100, 199}) {
    std::int64_t done = 0;
    for (const std::int64_t count : {first, std::int64_t{3}, std::int64_t{1}, std::int64_t{30}}) {
      const auto logits = decoder.run(
          {{.slot = 1, .past = done, .ids = {ids.begin() + done, ids.begin() + done + count}},
           {.slot = 0, .ids = {ids[0]}}});
      done += count;
      for (std::int64_t id = 0; id < config.vocab; ++id) {
        ASSERT_NEAR(logits[0][id], expected[(done - 1) * config.vocab + id], 1e-11)
            << "after " << done << " tokens, id " << id;
        ASSERT_NEAR(logits[1][id], expected[id], 1e-11);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Windows, PiecesTest, testing::Values(0, 5, 64, 70));

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
