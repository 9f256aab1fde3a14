// What a spec may say, and what the layers make of it.
#include "model/spec.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "core/error.hpp"
#include "model/families/registry.hpp"
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

/// The deck of a small model of `family`; four layers, and initial weights as `init` says.
deck::Deck small_deck(deck::Family family, deck::InitScheme init) {
  deck::Deck deck;
  deck.model.family = family;
  deck.model.layers = 4;
  deck.model.hidden = deck.model.ffn = 128;
  deck.model.heads = 4;
  deck.model.sequence = deck.model.positions = 16;
  deck.model.init = init;
  deck.model.init_std = 0.02;
  deck.model.layernorm_eps = 1e-5;
  deck.model.tie_embeddings = true;
  if (family != deck::Family::llama) return deck;
  deck.model.kv_heads = 2;
  deck.model.head_dim = 32;
  deck.model.activation = deck::GatedActivation::swiglu;
  deck.model.norm_placement = deck::NormPlacement::pre;
  deck.model.qk_norm = deck::QkNorm::none;
  deck.model.bias = deck::LinearBias::none;
  deck.model.position.theta = 1e4;
  deck.model.position.scaling = deck::PositionScaling::none;
  return deck;
}

TEST(Spec, ATensorRankHasWholeKeyAndValueHeadsOrACopyOfOne) {
  const model::AttentionSpec attention{.heads = 12, .kv_heads = 6};
  EXPECT_EQ(attention.local_kv_heads(3), 2);
  EXPECT_EQ(attention.local_kv_heads(12), 1);
  EXPECT_THROW(attention.local_kv_heads(4), InternalError);
}

TEST(Spec, InitialWeightsHaveTheDeviationsOfTheScheme) {
  using deck::InitScheme;
  const auto backend = device::make_host_backend(1);
  for (const auto family : {deck::Family::gpt, deck::Family::llama})
    for (const auto init : {InitScheme::scaled, InitScheme::depth, InitScheme::normal}) {
      const ModelSpec spec = model::make_spec(small_deck(family, init), {.size = 512});
      model::ParameterStore store(*backend, model::declare_parameters(spec),
                                  grid::Layout{.partition = {4}}, {}, mixed_precision(DType::f32));
      store.initialize(/*seed=*/7);
      int ends = 0;
      for (const model::Parameter& parameter : store.table()) {
        const std::string& name = parameter.name;
        if (parameter.shape.rank() != 2) continue;
        double expected = 0.02;
        if (name.ends_with("projection/weight") || name.ends_with("down/weight")) {
          const double layer = init == InitScheme::depth ? parameter.layer + 1.0 : 4.0;
          if (init != InitScheme::normal) expected /= std::sqrt(2 * layer);
          ++ends;
        }
        const std::vector<double> values = to_doubles(store[name].weight);
        const auto count = static_cast<double>(values.size());
        // The deviation of n values is itself accurate to 1 / sqrt(2 n): four times that.
        EXPECT_NEAR(norm(values) / std::sqrt(count), expected, expected * 4 / std::sqrt(2 * count))
            << name << ", " << name_of(init);
      }
      EXPECT_EQ(ends, 8);
    }
}

TEST(Spec, InitialWeightsAreTruncatedWhereTheDeckSaysSo) {
  const auto backend = device::make_host_backend(1);
  for (const auto family : {deck::Family::gpt, deck::Family::llama}) {
    deck::Deck deck = small_deck(family, deck::InitScheme::normal);
    deck.model.init_cutoff = 2.0;
    model::ParameterStore store(*backend,
                                model::declare_parameters(model::make_spec(deck, {.size = 512})),
                                grid::Layout{.partition = {4}}, {}, mixed_precision(DType::f32));
    store.initialize(/*seed=*/7);
    for (const model::Parameter& parameter : store.table()) {
      if (parameter.shape.rank() != 2) continue;
      const std::vector<double> values = to_doubles(store[parameter.name].weight);
      const auto count = static_cast<double>(values.size());
      double largest = 0;
      for (const double value : values) largest = std::max(largest, std::abs(value));
      EXPECT_LE(largest, 0.04f) << parameter.name;
      EXPECT_GT(largest, 0.0395) << parameter.name;
      // Of a standard normal number truncated at 2 the variance is 0.77374.
      const double expected = 0.02 * std::sqrt(0.77374);
      EXPECT_NEAR(norm(values) / std::sqrt(count), expected, expected * 4 / std::sqrt(2 * count))
          << parameter.name;
    }
  }
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
