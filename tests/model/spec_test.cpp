// What a spec may say, and what the layers make of it.
#include "model/spec.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "core/error.hpp"
#include "model/families/gpt2.hpp"
#include "model/stage/pipeline_stage.hpp"
#include "toy_family.hpp"

namespace trireme::test {
namespace {

using model::ModelSpec;

/// The message with which a GPT-2 that was changed so is refused.
std::string refusal(const std::function<void(ModelSpec&)>& change) {
  ModelSpec spec = model::gpt2_spec({.layers = 2, .hidden = 8, .heads = 2});
  change(spec);
  try {
    declare_parameters(spec);
  } catch (const DeckError& error) {
    return error.what();
  }
  return "";
}

TEST(Spec, WhatNoLayerImplementsIsRefused) {
  toy_spec(0.0);  // registers its kinds
  const auto attention = [](ModelSpec& spec) -> model::AttentionSpec& {
    return spec.blocks[1].attention;
  };
  EXPECT_EQ(refusal([](ModelSpec&) {}), "");
  EXPECT_EQ(refusal([&](ModelSpec& spec) { attention(spec).kv_heads = 3; }),
            "the model's layer 1 asks for 3 key/value heads of 2 query heads: give a divisor");
  EXPECT_EQ(refusal([&](ModelSpec& spec) { attention(spec).rotary = true; }),
            "the model rotates queries, but its positions are learned");
  EXPECT_EQ(refusal([&](ModelSpec& spec) {
              attention(spec).rotary = true;
              attention(spec).head_dim = 3;
            }),
            "the model's layer 1 rotates heads of 3, which have no pairs");
  EXPECT_EQ(refusal([&](ModelSpec& spec) {
              spec.embedding.position = model::PositionKind::rotary;
              for (auto& block : spec.blocks) block.attention.rotary = true;
              attention(spec).head_dim = 8;
            }),
            "the model rotates heads of 4 and of 8 elements, which is not built");
  EXPECT_EQ(refusal([&](ModelSpec& spec) {
              spec.blocks[1].norm_placement = model::NormPlacement::output;
            }),
            "the model's layer 1 asks for norms of sublayers' outputs with dropout or a bias, "
            "which is not built");
  EXPECT_EQ(refusal([](ModelSpec& spec) { spec.blocks[0].mlp.kind = "swish"; }),
            "the model's layer 0 asks for the MLP 'swish', which is not built (built: geglu, gelu, "
            "gelu-exact, swiglu, toy, toy-grouped)");
  EXPECT_EQ(refusal([](ModelSpec& spec) { spec.head.norm->kind = "rms"; }),
            "the model's head asks for the norm 'rms', which is not built (built: layernorm, "
            "rmsnorm, toy)");
  EXPECT_EQ(refusal([](ModelSpec& spec) { spec.embedding.norm = {.kind = "rms"}; }),
            "the model's embedding asks for the norm 'rms', which is not built (built: layernorm, "
            "rmsnorm, toy)");
  EXPECT_EQ(refusal([](ModelSpec& spec) { spec.head.transform = {.kind = "rms"}; }),
            "the model's head asks for the norm 'rms', which is not built (built: layernorm, "
            "rmsnorm, toy)");
  EXPECT_EQ(
      refusal([](ModelSpec& spec) {
        spec.embedding.norm = spec.embedding.sum_norm = spec.blocks[0].norm;
      }),
      "the model asks for norms of its token embedding and of the sum of its embeddings: give "
      "one");
  EXPECT_EQ(refusal([](ModelSpec& spec) { spec.padding = spec.documents.reset_attention = true; }),
            "the model asks for attention within documents of padded samples, which is not built");
}

TEST(Spec, AnUntiedHeadHasItsOwnProjection) {
  const auto table = declare_parameters(toy_spec(0.0));
  EXPECT_EQ(table.back().name, "head/weight");
  EXPECT_EQ(table.back().shape, Shape({61, 32}));
  EXPECT_EQ(table.back().stage, model::StagePlacement::last_stage);
  for (const model::Parameter& parameter : table) EXPECT_FALSE(parameter.tied) << parameter.name;
}

// A slot is in one chunk at a time: the larger of two blocks decides.
TEST(Spec, ChunksShareTheMemoryOfUnequalBlocks) {
  const auto activations = [](int chunks) {
    return model::PipelineStage::plan(
               {.spec = toy_spec(0.0), .precision = mixed_precision(DType::f64)},
               {.partition = {4}, .chunks = chunks}, /*stage=*/0,
               /*slots=*/1)
        .activations;
  };
  const model::StageConfig config{.spec = toy_spec(0.0), .precision = mixed_precision(DType::f64)};
  const auto bytes_of = [&](int layer) {
    model::Arena arena;
    model::TransformerBlock(config.spec, layer).take(arena, config.sizes());
    return arena.bytes();
  };
  const std::size_t stream = 16 * 32 * sizeof(double);
  const std::size_t blocks = bytes_of(0) + bytes_of(1) + bytes_of(2) + bytes_of(3);
  const std::size_t shared =
      std::max(bytes_of(0), bytes_of(2)) + std::max(bytes_of(1), bytes_of(3));
  EXPECT_EQ(activations(1) - activations(2), blocks - shared + 2 * stream);
}

}  // namespace
}  // namespace trireme::test
