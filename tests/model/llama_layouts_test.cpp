// Models of the Llama family with grouped heads on every layout against the serial model, dropout
// included.
#include <gtest/gtest.h>

#include "model/families/llama.hpp"
#include "ranked_gpt.hpp"

namespace trireme::test {
namespace {

using What = model::Recompute::What;

/// Norms before the sublayers and of each head, biases and a tied head; or norms of the sublayers'
/// outputs and of whole queries and keys, and a head of its own.
model::ModelSpec llama_model(bool output_norms) {
  model::LlamaConfig config{
      .layers = 4,
      .hidden = 32,
      .heads = 8,
      .kv_heads = 4,
      .head_dim = 6,
      .ffn = 24,
      .sequence = 16,
      .positions = 20,
      .vocab = 61,
      .qk_norm = model::QkNorm::head,
      .qkv_bias = true,
      .attention_dropout = 0.1,
      .hidden_dropout = 0.1,
      .init_std = 0.2,
      .documents = {.reset_positions = true, .reset_attention = true, .eod = 7}};
  if (output_norms) {
    config.norm_placement = model::NormPlacement::output;
    config.qk_norm = model::QkNorm::width;
    config.qkv_bias = config.tie_embeddings = false;
    config.hidden_dropout = 0.0;
    config.documents = {};
  }
  return llama_spec(config);
}

/// A way to run the model on a layout.
struct LlamaVariant {
  pipeline::ScheduleKind schedule;
  bool sequence_parallel = false;
  model::Recompute recompute = {};
  model::ZeroStage zero = model::ZeroStage::none;
};

std::vector<LlamaVariant> llama_variants(const grid::Layout& layout, bool output_norms) {
  const auto schedule = RankedGpt::schedule_for(layout);
  std::vector<LlamaVariant> variants = {{schedule}};
  if (layout.tensor > 1) variants.push_back({schedule, /*sequence_parallel=*/true});
  if (layout.data > 1)
    variants.push_back({.schedule = schedule, .zero = model::ZeroStage::weights});
  variants.push_back({schedule, layout.tensor > 1, {What::uniform, 2}});
  if (!output_norms) variants.push_back({schedule, false, {What::norms}});
  if (layout.pipeline > 1 && layout.chunks == 1)
    variants.push_back({pipeline::ScheduleKind::zero_bubble, layout.tensor > 1});
  return variants;
}

TEST(LlamaLayouts, HaveTheSerialGradients) {
  for (const bool output_norms : {false, true}) {
    const auto serial = RankedGpt::serial({}, DType::f64, llama_model(output_norms));
    const double loss = serial->compute_gradients(kConsumed);
    const LogicalTensors expected = serial->gradients();
    for (const grid::Layout& layout : layouts_of(world()->size()))
      for (const LlamaVariant& run : llama_variants(layout, output_norms)) {
        SCOPED_TRACE(fmt::format("{}, output norms {}, sequence {}, recompute {}, ZeRO-{}",
                                 to_string(layout), output_norms, run.sequence_parallel,
                                 static_cast<int>(run.recompute.what), static_cast<int>(run.zero)));
        RankedGpt model(world(), layout, run.schedule, {.zero = run.zero},
                        llama_model(output_norms), mixed_precision(DType::f64),
                        run.sequence_parallel, run.recompute,
                        {.gradients = true, .zero = run.zero});
        EXPECT_NEAR(model.compute_gradients(kConsumed), loss, kTolerance64 * loss);
        for (const auto& [name, gradient] : model.gradients()) {
          const auto& theirs = expected.at(name);
          EXPECT_GT(norm(theirs), 0.0) << name;
          EXPECT_LT(distance(gradient, theirs), kTolerance64 * norm(theirs)) << name;
        }
      }
  }
}

}  // namespace
}  // namespace trireme::test
