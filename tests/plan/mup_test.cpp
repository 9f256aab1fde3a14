// The coordinate check of muP (Yang et al., "Tensor programs V", 2022, appendix D.1): after steps
// of training with one learning rate, activations are as large at every width with muP, and grow
// with the width without.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "comm/communicator.hpp"
#include "deck/load.hpp"
#include "model/stage/pipeline_stage.hpp"
#include "optim/optimizer.hpp"
#include "plan/setup.hpp"

namespace trireme::plan {
namespace {

constexpr std::int64_t kMupTokens = 64;  // four samples of 16

/// How much the residual stream after the last block, and the largest logit, have moved after
/// steps.
struct Movement {
  double stream = 0.0;  ///< mean |change| of an element
  double logit = 0.0;
};

Movement train_mup(std::int64_t width, std::vector<std::string> overrides) {
  overrides.insert(overrides.end(),
                   {"model.hidden=" + std::to_string(width), "parallel.data=1", "model.heads=4"});
  const deck::Deck deck = deck::parse(
      "model: {family: llama, layers: 2, sequence: 16, vocab: 64, tie_embeddings: false}\n"
      "batch: {micro: 4, global: 4}\n"
      "precision: {compute: fp32}\n"
      "schedule: {peak: 1e-2}\n"
      "data: {train: corpus, split: 1}\n"
      "train: {iterations: 100}\n",
      "mup.yaml", overrides);
  const Vocabulary vocabulary{.size = 64};
  const auto backend = device::make_host_backend(1);
  comm::SerialCommunicator alone;
  const grid::Layout layout{.partition = {2}};
  model::ParameterStore parameters(*backend,
                                   model::declare_parameters(model_spec(deck, vocabulary)), layout,
                                   {}, precision(deck), {.gradients = true});
  optim::Optimizer optimizer(*backend, parameters, {alone, alone, nullptr}, optimizer_config(deck));
  optimizer.initialize(5);
  model::PipelineStage stage(stage_config(deck, vocabulary), *backend, alone, parameters, layout, 0,
                             1);
  std::vector<std::int32_t> ids, labels;
  for (std::int64_t i = 0; i < kMupTokens; ++i) {
    ids.push_back(static_cast<std::int32_t>(i * 7919 % 61));
    labels.push_back(static_cast<std::int32_t>((i * 104729 + 3) % 61));
  }
  const auto pass = [&] {
    stage.begin_batch();
    stage.load(0, {.ids = ids, .labels = labels});
    stage.forward(0, /*training=*/true, model::LossScales(1.0 / kMupTokens));
    const Tensor stream = stage.output(0);
    return std::vector<float>(stream.as<float>(), stream.as<float>() + stream.size());
  };
  std::vector<float> before;
  double logit = 0.0;
  for (int step = 0; step < 4; ++step) {
    parameters.zero_gradients();
    const std::vector<float> stream = pass();
    if (step == 0) before = stream, logit = stage.largest_logit();
    stage.backward(0, stage.gradient(0));
    optimizer.reduce_gradients();
    optimizer.update({.learning_rate = 3e-3, .gradient_norm = optimizer.gradient_norm()});
  }
  const std::vector<float> after = pass();
  Movement movement{.logit = stage.largest_logit() - logit};
  for (std::size_t i = 0; i < after.size(); ++i)
    movement.stream += std::abs(after[i] - before[i]) / static_cast<double>(after.size());
  return movement;
}

TEST(Mup, ActivationsMoveAlikeAtEveryWidth) {
  const std::vector<std::string> mup{"model.mup.base=64", "model.mup.base_head=16"};
  const Movement narrow = train_mup(64, mup), plain_narrow = train_mup(64, {});
  EXPECT_DOUBLE_EQ(narrow.stream, plain_narrow.stream) << "the base itself is changed";
  EXPECT_DOUBLE_EQ(narrow.logit, plain_narrow.logit);
  for (const std::int64_t width : {128, 256, 512}) {
    const Movement wide = train_mup(width, mup);
    EXPECT_GT(wide.stream, 0.6 * narrow.stream) << width;
    EXPECT_LT(wide.stream, 1.6 * narrow.stream) << width;
    EXPECT_GT(wide.logit, 0.6 * narrow.logit) << width;
    EXPECT_LT(wide.logit, 1.6 * narrow.logit) << width;
  }
  // The factor of the embeddings is the same at every width.
  const auto scaled = [](std::int64_t width) {
    return train_mup(width,
                     {"model.mup.base=64", "model.mup.base_head=16", "model.mup.embedding=4"});
  };
  const Movement louder = scaled(64), wide = scaled(256);
  EXPECT_NE(louder.stream, narrow.stream);
  EXPECT_GT(wide.stream, 0.6 * louder.stream);
  EXPECT_LT(wide.stream, 1.6 * louder.stream);
  const Movement plain = train_mup(512, {});
  EXPECT_GT(plain.stream, 2.5 * plain_narrow.stream);
  EXPECT_GT(plain.logit, 2.5 * plain_narrow.logit);
}

}  // namespace
}  // namespace trireme::plan
