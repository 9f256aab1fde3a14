// Where the elements of a placement lie.
#include "model/parameters/store.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "model/families/registry.hpp"
#include "model/spec.hpp"

namespace trireme::model {
namespace {

constexpr int kDataRanks = 2;

const Gpt2Config kModel{
    .layers = 3, .hidden = 8, .heads = 2, .ffn = 12, .sequence = 4, .positions = 4, .vocab = 13};

class ParameterBufferTest : public ::testing::Test {
 protected:
  ParameterBuffer make(DType matrices, const ShardingSpec& sharding) {
    return ParameterBuffer(*backend_, placement_, DType::f32, matrices, sharding, "test");
  }

  std::unique_ptr<device::Backend> backend_ = device::make_host_backend(1);
  std::vector<Parameter> table_ = declare_parameters(gpt2_spec(kModel));
  Placement placement_ =
      place_parameters(table_, {.data = kDataRanks, .pipeline = 2, .partition = {0, 3}},
                       {.pipeline = 1});  // the last stage, with a copy of the embedding
};

constexpr ShardingSpec kWhole{kDataRanks, /*sharded=*/false};
constexpr ShardingSpec kOneBuffer{kDataRanks, /*sharded=*/true, /*overlap=*/false};
constexpr ShardingSpec kTwoBuffers{kDataRanks, /*sharded=*/true, /*overlap=*/true};

/// The address after `tensor`.
const std::byte* end_of(const Tensor& tensor) {
  return static_cast<const std::byte*>(tensor.data) + tensor.bytes();
}

TEST_F(ParameterBufferTest, WholeElementsOfOneTypeKeepTheirOrder) {
  const ParameterBuffer memory = make(DType::f32, kWhole);
  EXPECT_EQ(memory.all().size(), placement_.size);
  EXPECT_FALSE(memory.is_sharded());
  for (const LocalParameter& local : placement_.parameters) {
    const Range range{local.offset, local.offset + local.shape.size()};
    EXPECT_EQ(memory.at(range).data, memory.all().as<float>() + local.offset);
    EXPECT_EQ(memory.own(range, 0).data, memory.at(range).data);
  }
}

TEST_F(ParameterBufferTest, EveryParameterHasAPlaceWithinThePlannedBytes) {
  for (const DType matrices : {DType::f32, DType::bf16}) {
    for (const ShardingSpec& sharding : {kWhole, kOneBuffer, kTwoBuffers}) {
      const int buffers = sharding.buffers();
      const ParameterBuffer memory = make(matrices, sharding);
      const std::size_t bytes =
          ParameterBuffer::planned_bytes(placement_, DType::f32, matrices, sharding);
      EXPECT_EQ(memory.is_sharded(), buffers > 0);
      EXPECT_EQ(memory.buffers(), buffers);
      const Tensor first = memory.at({0, 1});
      std::map<const void*, std::set<int>> users;
      for (const LocalParameter& local : placement_.parameters) {
        const Tensor tensor = memory.at({local.offset, local.offset + local.shape.size()});
        EXPECT_GE(tensor.data, first.data);
        EXPECT_LE(end_of(tensor), static_cast<const std::byte*>(first.data) + bytes);
        users[tensor.data].insert(local.parameter->layer);
        const bool of_matrices = local.offset >= placement_.common_size && !local.shared;
        EXPECT_EQ(tensor.dtype, of_matrices ? matrices : DType::f32) << local.parameter->name;
      }
      // Layers share places where there are fewer buffers, and only then.
      std::size_t most = 0;
      for (const auto& [place, layers] : users) most = std::max(most, layers.size());
      EXPECT_EQ(most, buffers == 0 ? 1u : buffers == 1 ? 3u : 2u);
    }
  }
}

TEST_F(ParameterBufferTest, WhatIsOwnedIsApartFromTheBuffers) {
  const ParameterBuffer memory = make(DType::f32, kTwoBuffers);
  EXPECT_THROW(memory.all(), InternalError);
  const std::byte* end = nullptr;
  for (const Range& layer : placement_.layers) {
    const Range half{layer.begin, layer.begin + layer.size() / kDataRanks};
    const Tensor own = memory.own(half, layer.begin / kDataRanks);
    EXPECT_TRUE(!end || own.data == end) << "not one after the other";
    end = end_of(own);
    EXPECT_NE(own.data, memory.at(half).data);
  }
  EXPECT_EQ(memory.own({0, placement_.common_size / kDataRanks}, 0).data, memory.at({0, 1}).data);
}

TEST_F(ParameterBufferTest, ZeroesWhatIsKept) {
  const ParameterBuffer memory = make(DType::f32, kOneBuffer);
  const Range layer = placement_.layers[1];
  const std::int64_t state = layer.begin / kDataRanks;
  const Range own{layer.begin, layer.begin + 4};
  const Range shared{placement_.size - 4, placement_.size};
  for (const Tensor& tensor :
       {memory.at({0, 4}), memory.at(shared), memory.own(own, state), memory.at(own)})
    std::fill_n(tensor.as<float>(), 4, 1.0f);
  memory.zero(*backend_);
  for (const Tensor& kept : {memory.at({0, 4}), memory.at(shared), memory.own(own, state)})
    EXPECT_EQ(kept.as<float>()[3], 0.0f);
  EXPECT_EQ(memory.at(own).as<float>()[3], 1.0f);
}

}  // namespace
}  // namespace trireme::model
