// Where ranks find what is not finite in a model: in their copies, their shards and their
// gradients.
#include "train/verify/step_verifier.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "comm/mpi/mpi_communicator.hpp"
#include "core/system/process.hpp"
#include "model/families/registry.hpp"
#include "model/spec.hpp"

namespace trireme::train {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class NonFinite : public testing::TestWithParam<bool> {  // whether optimizer state is sharded
 protected:
  NonFinite() { optimizer_.initialize(/*seed=*/1); }

  bool is_last() const { return groups_.world->rank() == groups_.world->size() - 1; }
  /// Element [row, column] of this rank's copy of a parameter's weight or gradient.
  float& at(Tensor model::WeightGradient::*which, const std::string& name, std::int64_t row,
            std::int64_t column) {
    const Tensor tensor = parameters_[name].*which;
    return tensor.as<float>()[row * tensor.shape[1] + column];
  }
  std::string find() { return find_non_finite(*groups_.world, *backend_, parameters_, optimizer_); }
  /// " on rank 1 (node0)" of the last rank.
  std::string last_rank() const {
    const int ranks = groups_.world->size();
    return ranks == 1 ? "" : fmt::format(" on rank {} ({})", ranks - 1, host_name());
  }

  comm::Groups groups_ =
      comm::make_groups(comm::MpiCommunicator::world(),
                        {.data = comm::MpiCommunicator::world()->size(), .partition = {2}});
  const std::unique_ptr<device::Backend> backend_ = device::make_host_backend(1);
  model::ParameterStore parameters_{*backend_,
                                    model::declare_parameters(model::gpt2_spec({.layers = 2,
                                                                                .hidden = 8,
                                                                                .heads = 2,
                                                                                .ffn = 16,
                                                                                .sequence = 4,
                                                                                .positions = 4,
                                                                                .vocab = 7})),
                                    groups_.layout,
                                    groups_.place,
                                    mixed_precision(DType::f32),
                                    {.gradients = true}};
  optim::Optimizer optimizer_{
      *backend_,
      parameters_,
      {.world = *groups_.world, .data = *groups_.data, .embedding = nullptr},
      {.zero = GetParam() ? model::ZeroStage::optimizer_state : model::ZeroStage::none}};
};

TEST_P(NonFinite, NothingInAFreshModel) { EXPECT_EQ(find(), ""); }

TEST_P(NonFinite, AWeightOfOneRanksCopy) {
  if (is_last()) at(&model::WeightGradient::weight, "layers/1/mlp/up/weight", 3, 5) = kNan;
  at(&model::WeightGradient::gradient, "layers/0/mlp/up/weight", 0, 0) = kNan;
  EXPECT_EQ(find(), "the weight layers/1/mlp/up/weight[3, 5]" + last_rank() +
                        " is nan; 1 of 28 parameters has such weights");
  EXPECT_NE(find_non_finite(*groups_.world, *backend_, parameters_), "");
}

TEST_P(NonFinite, TheFirstOfSeveralGradients) {
  for (const char* name : {"layers/1/mlp/up/weight", "layers/0/attention/qkv/weight"})
    for (std::int64_t row = 0; row < 16; ++row)
      for (std::int64_t column = 0; column < 8; ++column)
        at(&model::WeightGradient::gradient, name, row, column) = HUGE_VALF;
  const std::string found = find();
  EXPECT_TRUE(found.starts_with("the gradient layers/0/attention/qkv/weight[0, 0]")) << found;
  EXPECT_TRUE(found.ends_with(" is infinite; 2 of 28 parameters have such gradients")) << found;
}

TEST_P(NonFinite, TheLargestWeight) {
  if (is_last()) at(&model::WeightGradient::weight, "embedding/position", 3, 1) = -2e18f;
  EXPECT_EQ(find_largest_weight(*groups_.world, *backend_, parameters_, optimizer_),
            "-2e+18 in embedding/position[3, 1]" + last_rank());
}

INSTANTIATE_TEST_SUITE_P(State, NonFinite, testing::Bool(),
                         [](const auto& info) { return info.param ? "sharded" : "whole"; });

}  // namespace
}  // namespace trireme::train
