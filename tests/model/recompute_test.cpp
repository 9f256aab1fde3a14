// Which layers are recomputed, and what that costs and saves on one rank.
#include "model/stage/stage_memory.hpp"

#include <gtest/gtest.h>

#include <random>

#include "core/tensor.hpp"
#include "serial_gpt.hpp"
#include "tensors.hpp"

namespace trireme::test {
namespace {

using model::Recompute;
using model::Segment;
using What = Recompute::What;

TEST(Segments, AreGroupsOrTheFirstLayersOrOne) {
  using Segments = std::vector<Segment>;
  const auto cut = [](int layers, const Recompute& recompute) {
    return make_segments(layers, recompute);
  };
  EXPECT_EQ(cut(3, {}), (Segments{{0, 3, false}}));
  EXPECT_EQ(cut(3, {What::norms}), (Segments{{0, 3, false}}));
  EXPECT_EQ(cut(3, {What::uniform, 1}), (Segments{{0, 1, true}, {1, 1, true}, {2, 1, true}}));
  EXPECT_EQ(cut(5, {What::uniform, 2}), (Segments{{0, 2, true}, {2, 2, true}, {4, 1, true}}));
  EXPECT_EQ(cut(2, {What::uniform, 7}), (Segments{{0, 2, true}}));
  EXPECT_EQ(cut(4, {What::block, 2}), (Segments{{0, 1, true}, {1, 1, true}, {2, 2, false}}));
  EXPECT_EQ(cut(2, {What::block, 7}), (Segments{{0, 1, true}, {1, 1, true}}));
  for (const What what : {What::nothing, What::norms, What::uniform, What::block})
    EXPECT_TRUE(cut(0, {what, 1}).empty());
}

model::Gpt2Config with_documents() {
  return {.layers = 3,
          .hidden = 12,
          .heads = 3,
          .ffn = 20,
          .sequence = 6,
          .positions = 8,
          .vocab = 11,
          .attention_dropout = 0.2,
          .hidden_dropout = 0.2,
          .reset_positions = true,
          .reset_attention = true,
          .eod = 4};
}

TEST(Recompute, ChangesNoBitOfTheGradient) {
  constexpr int kBatch = 2;
  const model::Gpt2Config config = with_documents();
  std::vector<std::int32_t> ids, labels;
  for (int t = 0; t < config.sequence * kBatch; ++t) {
    ids.push_back((5 * t + 4) % 11);
    labels.push_back(t % 5 == 3 ? -1 : 3 * t % 11);
  }
  const model::MicroBatch batch{.ids = ids, .labels = labels, .first_sample = 7};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const auto gradients = [&](const Recompute& recompute) {
      SerialGpt gpt(config, kBatch, dtype, /*max_loss_tokens=*/1000, recompute);
      std::mt19937_64 random(3);
      std::normal_distribution<float> normal(0.0f, 0.3f);
      std::vector<float> weights(gpt.parameters().placement().size);
      for (float& weight : weights) weight = normal(random);
      convert_from_float(weights.data(), weights.size(), dtype, gpt.parameters().weights().data);
      gpt.backward(batch);
      return to_doubles(gpt.parameters().gradients());
    };
    const std::vector<double> kept = gradients({});
    EXPECT_GT(norm(kept), 0.0);
    for (const bool offload : {false, true})
      for (const Recompute& recompute :
           {Recompute{What::norms}, Recompute{What::uniform, 1, false, offload},
            Recompute{What::uniform, 2, false, offload},
            Recompute{What::uniform, 3, false, offload}, Recompute{What::block, 1, false, offload},
            Recompute{What::block, 2, false, offload}})
        EXPECT_EQ(gradients(recompute), kept)
            << name_of(dtype) << ", method " << static_cast<int>(recompute.what) << " of "
            << recompute.layers << " layers" << (offload ? ", on the host" : "");
  }
}

TEST(Recompute, RefusesToPutWeightGradientsOff) {
  SerialGpt gpt(with_documents(), 2, DType::f32, 1000, {What::uniform, 1});
  EXPECT_THROW(gpt.stage().backward_input(0, gpt.stage().gradient(0)), InternalError);
}

model::StageConfig six_layers(int tensor_ranks) {
  return {.spec = model::gpt2_spec({.layers = 6,
                                    .hidden = 128,
                                    .heads = 2,
                                    .ffn = 512,
                                    .sequence = 64,
                                    .positions = 64,
                                    .vocab = 100}),
          .micro_batch = 2,
          .tensor_ranks = tensor_ranks,
          .precision = mixed_precision(DType::bf16)};
}

// The activations of one slot are streams and layers; what all slots share comes once.
TEST(Recompute, ActivationsAreInputsAndOneSetToWorkOn) {
  model::StageConfig config = six_layers(/*tensor_ranks=*/1);
  // The second of three stages, which has neither an embedding nor a head.
  const grid::Layout layout{.pipeline = 3, .partition = {0, 6, 0}};
  const auto activations = [&](const Recompute& recompute, int slots) {
    config.recompute = recompute;
    return model::PipelineStage::plan(config, layout, /*stage=*/1, slots).activations;
  };
  model::Arena count;
  model::TransformerBlock(config.spec, 0).take(count, config.sizes());
  const std::size_t layer = count.bytes();
  const std::size_t stream = config.sizes().tokens() * 128 * size_of(DType::bf16);
  for (const std::size_t slots : {1, 4}) {
    const int n = static_cast<int>(slots);
    EXPECT_EQ(activations({}, n), slots * (7 * stream + 6 * layer));
    EXPECT_EQ(activations({What::norms}, n),
              stream + slots * (7 * stream + 6 * (layer - 2 * stream)));
    EXPECT_EQ(activations({What::uniform, 1}, n), layer + slots * 7 * stream);
    EXPECT_EQ(activations({What::uniform, 4}, n), 4 * layer + 3 * stream + slots * 3 * stream);
    EXPECT_EQ(activations({What::block, 2}, n), layer + slots * (7 * stream + 4 * layer));
  }
}

// Kept inputs that go elsewhere leave streams at hand that slots share, and each slot's output.
TEST(Recompute, InputsGoToTensorRanksAndToTheHost) {
  model::StageConfig config = six_layers(/*tensor_ranks=*/2);
  const grid::Layout layout{.tensor = 2, .pipeline = 3, .partition = {0, 6, 0}};
  const auto plan = [&](const Recompute& recompute, int slots) {
    config.recompute = recompute;
    return model::PipelineStage::plan(config, layout, /*stage=*/1, slots);
  };
  model::Arena count;
  model::TransformerBlock(config.spec, 0).take(count, config.sizes());
  const std::size_t layer = count.bytes();
  const std::size_t stream = config.sizes().tokens() * 128 * size_of(DType::bf16);
  for (const std::size_t slots : {1, 4}) {
    const int n = static_cast<int>(slots);
    const std::size_t at_hand = (1 + std::min(slots, 2ul)) * stream;
    const model::StageMemory whole = plan({What::uniform, 1}, n);
    EXPECT_EQ(whole.activations, layer + slots * 7 * stream);
    EXPECT_EQ(whole.host, 0u);
    const model::StageMemory cut = plan({What::uniform, 1, /*partition=*/true}, n);
    EXPECT_EQ(cut.activations, layer + at_hand + slots * (6 * stream / 2 + stream));
    EXPECT_EQ(cut.host, 0u);
    const model::StageMemory away = plan({What::uniform, 1, false, /*offload=*/true}, n);
    EXPECT_EQ(away.activations, layer + at_hand + slots * stream);
    EXPECT_EQ(away.host, slots * 6 * stream);
    const model::StageMemory both = plan({What::uniform, 4, true, true}, n);
    EXPECT_EQ(both.activations, 4 * layer + 3 * stream + at_hand + slots * stream);
    EXPECT_EQ(both.host, slots * 2 * stream / 2);
    const model::StageMemory block = plan({What::block, 2, true, true}, n);
    EXPECT_EQ(block.activations, layer + at_hand + slots * (5 * stream + 4 * layer));
    EXPECT_EQ(block.host, slots * 2 * stream / 2);
  }
}

// recompute.contiguous: side by side in one block, the chunk's inputs of all slots first.
TEST(Recompute, KeptInputsLieSideBySide) {
  const model::LayerSizes sizes =
      model::StageConfig{.spec = gpt2_spec(with_documents()), .micro_batch = 2, .tensor_ranks = 3}
          .sizes();
  const auto places = [&](const Recompute& recompute, model::Arena& arena, model::Arena& host) {
    const auto inputs = model::SegmentInputs::take(arena, host, sizes, recompute, /*segments=*/3,
                                                   /*slots=*/4);
    EXPECT_EQ(inputs.segments(), 3);
    std::vector<const std::byte*> found;
    for (int slot = 0; slot < 4; ++slot)
      for (int segment = 0; segment < 3; ++segment)
        found.push_back(static_cast<const std::byte*>(inputs.kept(slot, segment).data));
    return found;
  };
  std::vector<std::byte> block(1 << 20), on_host(1 << 20);
  const std::size_t stream = sizes.tokens() * 12 * sizeof(float);
  const auto aligned = [](std::size_t bytes) { return (bytes + 255) / 256 * 256; };
  for (const bool partition : {false, true})
    for (const bool offload : {false, true}) {
      model::Arena arena(block.data()), host(on_host.data());
      const auto found = places({What::uniform, 1, partition, offload}, arena, host);
      const std::byte* first = offload ? on_host.data() : block.data();
      for (std::size_t i = 0; i < found.size(); ++i)
        EXPECT_EQ(found[i] - first, i * aligned(partition ? stream / 3 : stream)) << i;
    }
}

}  // namespace
}  // namespace trireme::test
