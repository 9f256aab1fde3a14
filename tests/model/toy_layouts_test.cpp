// The toy family trains on every layout: the proof that a family needs nothing but layers and a
// spec.
#include <gtest/gtest.h>

#include "ranked_gpt.hpp"
#include "toy_family.hpp"

namespace trireme::test {
namespace {

using What = model::Recompute::What;

/// A way to run the model on a layout.
struct ToyVariant {
  optim::OptimizerConfig optimizer = {.zero = model::ZeroStage::none};
  bool sequence_parallel = false;
  model::Recompute recompute = {};
  model::StoreOptions store = {.gradients = true};
};

model::ModelSpec toy_model() { return toy_spec(/*dropout=*/0.1); }

/// What the serial model has: the loss and gradients of a batch, and those of another and the
/// weights after two updates.
struct SerialToy {
  double loss, trained;
  LogicalTensors gradients, weights;
};

SerialToy train_serial() {
  const auto model = RankedGpt::serial({.zero = model::ZeroStage::none}, DType::f64, toy_model());
  SerialToy serial;
  serial.loss = model->compute_gradients(kConsumed);
  serial.gradients = model->gradients();
  for (int step = 0; step < 2; ++step) model->step(1e-2);
  serial.trained = model->compute_gradients(0);
  serial.weights = model->weights();
  EXPECT_LT(serial.trained, serial.loss);
  return serial;
}

/// Compares with the serial model the gradients and, after two updates, the loss and the weights of
/// the ways to run it on `layout`.
void expect_serial(const grid::Layout& layout, pipeline::ScheduleKind schedule,
                   const std::vector<ToyVariant>& runs) {
  static const SerialToy serial = train_serial();
  const auto& [loss, trained, gradients, weights] = serial;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const ToyVariant& run = runs[i];
    SCOPED_TRACE(fmt::format("{}, run {}", to_string(layout), i));
    RankedGpt model(world(), layout, schedule, run.optimizer, toy_model(),
                    mixed_precision(DType::f64), run.sequence_parallel, run.recompute, run.store);
    EXPECT_NEAR(model.compute_gradients(kConsumed), loss, kTolerance64 * loss);
    for (const auto& [name, gradient] : model.gradients())
      EXPECT_LT(distance(without_key(name, gradient), without_key(name, gradients.at(name))),
                kTolerance64 * norm(without_key(name, gradients.at(name))))
          << name;
    for (int step = 0; step < 2; ++step) model.step(1e-2);
    EXPECT_NEAR(model.compute_gradients(0), trained, 1e-9 * trained);
    for (const auto& [name, weight] : model.weights())
      EXPECT_LT(distance(without_key(name, weight), without_key(name, weights.at(name))),
                1e-8 * norm(weights.at(name)))
          << name;
  }
}

TEST(ToyFamily, TrainsOnEveryLayout) {
  for (const grid::Layout& layout : layouts_of(world()->size())) {
    std::vector<ToyVariant> runs = {{}, {.optimizer = {.bucket = 1000}}};
    if (layout.tensor > 1) runs.push_back({.sequence_parallel = true});
    if (layout.data > 1)
      runs.push_back({.store = {.gradients = true, .zero = model::ZeroStage::weights}});
    for (ToyVariant& run : runs)
      if (run.store.zero == model::ZeroStage::weights) run.optimizer.zero = run.store.zero;
    expect_serial(layout, RankedGpt::schedule_for(layout), runs);
  }
}

TEST(ToyFamily, RecomputesAndDefersOnEveryLayout) {
  for (const grid::Layout& layout : layouts_of(world()->size())) {
    const bool sequence_parallel = layout.tensor > 1;
    expect_serial(layout, RankedGpt::schedule_for(layout),
                  {{.recompute = {What::norms}},
                   {.sequence_parallel = sequence_parallel, .recompute = {What::uniform, 2}}});
    if (layout.pipeline > 1 && layout.chunks == 1)
      expect_serial(layout, pipeline::ScheduleKind::zero_bubble,
                    {{.sequence_parallel = sequence_parallel}});
  }
}

}  // namespace
}  // namespace trireme::test
