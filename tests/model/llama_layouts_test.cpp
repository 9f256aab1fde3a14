// Models of the Llama family with grouped heads on every layout against the serial model, dropout
// included.
#include <gtest/gtest.h>

#include "model/families/registry.hpp"
#include "ranked_gpt.hpp"

namespace trireme::test {
namespace {

using What = model::Recompute::What;

/// Norms before the sublayers and of each head, biases and a tied head; or norms of the sublayers'
/// outputs and of whole queries and keys, and a head of its own.
model::ModelSpec llama_model(bool output_norms, std::int64_t kv_heads = 4) {
  model::LlamaConfig config = small_grouped_llama(kv_heads);
  config.window = 0;
  config.qkv_bias = config.tie_embeddings = true;
  config.documents = {.reset_positions = true, .reset_attention = true, .eod = 7};
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

/// Compares loss, gradients and their norm on `layouts` with those of the serial model.
void expect_serial_gradients(const std::vector<grid::Layout>& layouts, bool output_norms,
                             std::int64_t kv_heads) {
  const model::ModelSpec spec = llama_model(output_norms, kv_heads);
  const auto serial = RankedGpt::serial({}, DType::f64, spec);
  const double loss = serial->compute_gradients(kConsumed);
  const double total = serial->optimizer().gradient_norm();
  const LogicalTensors expected = serial->gradients();
  for (const grid::Layout& layout : layouts)
    for (const LlamaVariant& run : llama_variants(layout, output_norms)) {
      SCOPED_TRACE(
          fmt::format("{}, {} key heads, output norms {}, sequence {}, recompute {}, "
                      "ZeRO-{}",
                      to_string(layout), kv_heads, output_norms, run.sequence_parallel,
                      static_cast<int>(run.recompute.what), static_cast<int>(run.zero)));
      RankedGpt model(world(), layout, run.schedule, {.zero = run.zero}, spec,
                      mixed_precision(DType::f64), run.sequence_parallel, run.recompute,
                      {.gradients = true, .zero = run.zero});
      EXPECT_NEAR(model.compute_gradients(kConsumed), loss, kTolerance64 * loss);
      EXPECT_NEAR(model.optimizer().gradient_norm(), total, kTolerance64 * total);
      for (const auto& [name, gradient] : model.gradients()) {
        const auto& theirs = expected.at(name);
        EXPECT_GT(norm(theirs), 0.0) << name;
        EXPECT_LT(distance(gradient, theirs), kTolerance64 * norm(theirs)) << name;
      }
    }
}

TEST(LlamaLayouts, HaveTheSerialGradients) {
  for (const bool output_norms : {false, true})
    expect_serial_gradients(layouts_of(world()->size()), output_norms, /*kv_heads=*/4);
}

/// The layouts with more tensor ranks than `kv_heads`.
std::vector<grid::Layout> layouts_with_copies(std::int64_t kv_heads) {
  std::vector<grid::Layout> all = layouts_of(world()->size());
  std::erase_if(all, [&](const grid::Layout& layout) { return layout.tensor <= kv_heads; });
  return all;
}

TEST(LlamaLayouts, CopiesOfKeyAndValueHeadsHaveTheSerialGradients) {
  expect_serial_gradients(layouts_with_copies(1), /*output_norms=*/true, /*kv_heads=*/1);
  expect_serial_gradients(layouts_with_copies(2), /*output_norms=*/false, /*kv_heads=*/2);
}

/// The master weights that this rank owns of which other tensor ranks hold copies.
std::vector<double> copied_weights(RankedGpt& model) {
  std::vector<double> all;
  for (const optim::OwnedPart& part : model.optimizer().owned_parts())
    for (const model::LocalParameter& local : model.parameters().placement().parameters) {
      if (local.parameter != part.parameter || local.blocks_at(part.weight_offset).copies == 1)
        continue;
      const std::vector<double> own = to_doubles(model.optimizer().master(part));
      all.insert(all.end(), own.begin(), own.end());
    }
  return all;
}

TEST(LlamaLayouts, CopiesOfKeyAndValueHeadsTrainAsTheSerialModel) {
  const model::ModelSpec spec = llama_model(/*output_norms=*/false, /*kv_heads=*/1);
  using model::ZeroStage;
  using optim::OptimizerType;
  for (const auto& [type, zero] : {std::pair(OptimizerType::adamw, ZeroStage::optimizer_state),
                                   std::pair(OptimizerType::lamb, ZeroStage::none),
                                   std::pair(OptimizerType::muon, ZeroStage::weights)}) {
    const optim::OptimizerConfig config{
        .type = type, .eps = 1e-3, .momentum = 0.9, .zero = zero, .bucket = 1000};
    const auto serial = RankedGpt::serial(config, DType::f64, spec);
    for (int step = 0; step < 2; ++step) serial->step(1e-2);
    const LogicalTensors expected = serial->weights();
    for (const grid::Layout& layout : layouts_with_copies(/*kv_heads=*/1)) {
      SCOPED_TRACE(fmt::format("{}, optimizer {}", to_string(layout), static_cast<int>(type)));
      RankedGpt model(world(), layout, RankedGpt::schedule_for(layout), config, spec,
                      mixed_precision(DType::f64), /*sequence_parallel=*/false, {},
                      {.gradients = true, .zero = zero});
      for (int step = 0; step < 2; ++step) model.step(1e-2);
      for (const auto& [name, weight] : model.weights())
        EXPECT_LT(distance(weight, expected.at(name)), 1e-8 * norm(expected.at(name))) << name;
      const std::vector<double> own = copied_weights(model);
      std::vector<double> first = own;
      model.groups().tensor->broadcast(first.data(), first.size() * sizeof(double), /*root=*/0);
      EXPECT_EQ(own, first) << "the copies differ";
    }
  }
}

}  // namespace
}  // namespace trireme::test
