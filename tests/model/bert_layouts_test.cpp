// BERT on every layout against the serial model, dropout included.
#include <gtest/gtest.h>

#include "model/families/registry.hpp"
#include "ranked_gpt.hpp"

namespace trireme::test {
namespace {

using What = model::Recompute::What;

/// A way to run the model on a layout.
struct BertVariant {
  bool sequence_parallel = false;
  model::Recompute recompute = {};
  model::ZeroStage zero = model::ZeroStage::none;
};

model::ModelSpec bert_model(bool post_norm) {
  return model::bert_spec({.layers = 4,
                           .hidden = 32,
                           .heads = 4,
                           .ffn = 64,
                           .sequence = 16,
                           .positions = 20,
                           .vocab = 61,
                           .attention_dropout = 0.1,
                           .hidden_dropout = 0.1,
                           .init = {.deviation = 0.1},
                           .max_labels = post_norm ? 4 : 0,
                           .post_norm = post_norm});
}

/// What the serial model has.
struct SerialBert {
  double loss;
  LogicalTensors gradients;
};

const SerialBert& serial_bert(bool post_norm) {
  const auto train = [](bool post) {
    const auto model = RankedGpt::serial({}, DType::f64, bert_model(post));
    const double loss = model->compute_gradients(kConsumed);
    return SerialBert{loss, model->gradients()};
  };
  static const SerialBert pre = train(false), post = train(true);
  return post_norm ? post : pre;
}

void expect_serial(bool post_norm, const grid::Layout& layout, pipeline::ScheduleKind schedule,
                   const std::vector<BertVariant>& variants) {
  const auto& [loss, expected] = serial_bert(post_norm);
  for (std::size_t i = 0; i < variants.size(); ++i) {
    const BertVariant& run = variants[i];
    SCOPED_TRACE(fmt::format("{}, post-norm {}, run {}", to_string(layout), post_norm, i));
    RankedGpt model(world(), layout, schedule, {.zero = run.zero}, bert_model(post_norm),
                    mixed_precision(DType::f64), run.sequence_parallel, run.recompute,
                    {.gradients = true, .zero = run.zero});
    EXPECT_NEAR(model.compute_gradients(kConsumed), loss, kTolerance64 * loss);
    for (const auto& [name, gradient] : model.gradients()) {
      const auto ours = without_key(name, gradient), theirs = without_key(name, expected.at(name));
      EXPECT_GT(norm(theirs), 0.0) << name;
      EXPECT_LT(distance(ours, theirs), kTolerance64 * norm(theirs)) << name;
    }
  }
}

TEST(BertLayouts, HaveTheSerialGradients) {
  for (const grid::Layout& layout : layouts_of(world()->size())) {
    std::vector<BertVariant> variants = {{}};
    if (layout.tensor > 1) variants.push_back({.sequence_parallel = true});
    if (layout.data > 1) variants.push_back({.zero = model::ZeroStage::weights});
    for (const bool post_norm : {false, true})
      expect_serial(post_norm, layout, RankedGpt::schedule_for(layout), variants);
  }
}

TEST(BertLayouts, RecomputeAndDeferWithTheSerialGradients) {
  for (const grid::Layout& layout : layouts_of(world()->size())) {
    const bool sequence_parallel = layout.tensor > 1;
    for (const bool post_norm : {false, true}) {
      std::vector<BertVariant> variants = {
          {.sequence_parallel = sequence_parallel, .recompute = {What::uniform, 2}}};
      if (!post_norm) variants.push_back({.recompute = {What::norms}});
      expect_serial(post_norm, layout, RankedGpt::schedule_for(layout), variants);
      if (layout.pipeline > 1 && layout.chunks == 1)
        expect_serial(post_norm, layout, pipeline::ScheduleKind::zero_bubble,
                      {{.sequence_parallel = sequence_parallel}});
    }
  }
}

// The lookup in fp32 master weights, shared by tensor ranks and summed over them, has the bits of
// the serial one.
TEST(BertLayouts, LookUpMasterWeightsAsTheSerialModelDoes) {
  const model::ModelSpec spec = bert_model(/*post_norm=*/true);
  const auto embedded = [&](std::unique_ptr<comm::MpiCommunicator> ranks,
                            const grid::Layout& layout, bool sequence_parallel, int sample_pair,
                            bool fp32) {
    RankedGpt model(std::move(ranks), layout, RankedGpt::schedule_for(layout),
                    {.zero = model::ZeroStage::none}, spec, mixed_precision(DType::bf16),
                    sequence_parallel, {}, {.gradients = true}, fp32);
    if (model.groups().place.pipeline > 0) return std::vector<double>();
    model.forward({.micro_batch = sample_pair});
    return to_doubles(model.input(0));
  };
  const grid::Layout alone{.partition = {4}};
  const auto serial = [&](int pair, bool fp32) {
    const auto everyone = world();
    return embedded(everyone->split(everyone->rank(), 0, "serial"), alone, false, pair, fp32);
  };
  EXPECT_NE(serial(0, true), serial(0, false));
  for (const grid::Layout& layout : layouts_of(world()->size()))
    for (const bool sequence_parallel : {false, true}) {
      if (sequence_parallel && layout.tensor == 1) continue;
      SCOPED_TRACE(fmt::format("{}, sequence {}", to_string(layout), sequence_parallel));
      const grid::Coordinates place = layout.coordinates_of(world()->rank());
      // The first micro-batch of data rank d is the serial one's number d.
      const std::vector<double> all = serial(place.data, true);
      const std::vector<double> ours = embedded(world(), layout, sequence_parallel, 0, true);
      if (place.pipeline > 0) continue;
      const std::size_t first = sequence_parallel ? place.tensor * ours.size() : 0;
      ASSERT_LE(first + ours.size(), all.size());
      EXPECT_TRUE(std::equal(ours.begin(), ours.end(), all.begin() + first));
    }
}

}  // namespace
}  // namespace trireme::test
