#include "model/parameters/table.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "model/families/registry.hpp"
#include "model/parameters/store.hpp"
#include "model/spec.hpp"
#include "tensors.hpp"

namespace trireme::test {
namespace {

using grid::Hyperslabs;
using model::LocalParameter;
using model::Parameter;
using model::Placement;
using model::Range;
using model::StagePlacement;

model::Gpt2Config small() {
  return {.layers = 4,
          .hidden = 24,
          .heads = 4,
          .ffn = 40,
          .sequence = 8,
          .positions = 9,
          .vocab = 61,
          .embedding_layernorm = true};
}

/// Tensor, data and pipeline extents with partitions of four layers, empty stages among them.
const std::vector<grid::Layout>& layouts() {
  static const std::vector<grid::Layout> all = {
      {1, 1, 1, {4}},          {2, 1, 1, {4}},
      {4, 1, 1, {4}},          {1, 3, 1, {4}},
      {1, 1, 2, {1, 3}},       {2, 2, 2, {2, 2}},
      {2, 2, 2, {2, 2}, 2},    {1, 1, 4, {0, 2, 2, 0}},
      {4, 2, 4, {0, 2, 2, 0}}, {2, 1, 5, {0, 4, 0, 0, 0}}};
  return all;
}

/// A Llama with four query heads, and two of keys and values.
std::vector<Parameter> grouped_heads() {
  return model::declare_parameters(model::llama_spec({.layers = 4,
                                                      .hidden = 24,
                                                      .heads = 4,
                                                      .kv_heads = 2,
                                                      .head_dim = 6,
                                                      .ffn = 40,
                                                      .sequence = 8,
                                                      .positions = 9,
                                                      .vocab = 61,
                                                      .qk_norm = model::QkNorm::width,
                                                      .qkv_bias = true}));
}

const LocalParameter& find(const Placement& placement, const std::string& name) {
  for (const LocalParameter& local : placement.parameters)
    if (local.parameter->name == name) return local;
  throw InternalError("no '{}'", name);
}

TEST(ParameterTable, CountsGpt2) {
  model::Gpt2Config config{
      .layers = 12, .hidden = 768, .heads = 12, .ffn = 3072, .positions = 1024, .vocab = 50257};
  EXPECT_EQ(count_elements(declare_parameters(gpt2_spec(config))), 124'439'808);
}

TEST(ParameterTable, NamesShapesAndDecay) {
  const auto table = declare_parameters(gpt2_spec(small()));
  EXPECT_EQ(table.size(), 4u + 4 * 12 + 2);
  for (const Parameter& parameter : table) {
    EXPECT_EQ(parameter.weight_decay, parameter.shape.rank() == 2) << parameter.name;
    EXPECT_EQ(parameter.tied, parameter.name == "embedding/word") << parameter.name;
    EXPECT_EQ(parameter.sequence_parallel, parameter.sharding == model::TensorSharding::none)
        << parameter.name;
  }
  const auto shape = [&](const std::string& name) -> Shape {
    for (const Parameter& parameter : table)
      if (parameter.name == name) return parameter.shape;
    throw InternalError("no '{}'", name);
  };
  EXPECT_EQ(shape("embedding/word"), Shape({61, 24}));
  EXPECT_EQ(shape("embedding/position"), Shape({9, 24}));
  EXPECT_EQ(shape("layers/3/attention/qkv/weight"), Shape({72, 24}));
  EXPECT_EQ(shape("layers/3/attention/qkv/bias"), Shape({72}));
  EXPECT_EQ(shape("layers/0/attention/projection/weight"), Shape({24, 24}));
  EXPECT_EQ(shape("layers/0/mlp/up/weight"), Shape({40, 24}));
  EXPECT_EQ(shape("layers/0/mlp/down/weight"), Shape({24, 40}));
  EXPECT_EQ(shape("layers/0/norm2/bias"), Shape({24}));
  EXPECT_EQ(shape("final_norm/weight"), Shape({24}));
}

TEST(Placement, HoldsEachElementOnceAsPrimary) {
  // The second has two key and value heads, of which up to four tensor ranks hold copies.
  for (const auto& table : {declare_parameters(gpt2_spec(small())), grouped_heads()})
    for (const grid::Layout& layout : layouts()) {
      SCOPED_TRACE(fmt::format("tensor {} data {} pipeline {}", layout.tensor, layout.data,
                               layout.pipeline));
      LogicalTensors held = zeros(table);
      for (int rank = 0; rank < layout.ranks(); ++rank) {
        const grid::Coordinates place = layout.coordinates_of(rank);
        if (place.data > 0) continue;
        for (const LocalParameter& local : place_parameters(table, layout, place).parameters)
          for (const model::LocalBlocks& blocks : local.blocks) {
            if (!blocks.primary) continue;
            const Hyperslabs slabs = grid::slice_hyperslabs(
                local.slabs, blocks.range.begin - local.offset, blocks.range.end - local.offset);
            for_each_element(slabs, local.parameter->shape, [&](std::int64_t, std::int64_t i) {
              held[local.parameter->name].at(i) += 1;
            });
          }
      }
      for (const auto& [name, counts] : held)
        EXPECT_TRUE(std::all_of(counts.begin(), counts.end(), [](double n) { return n == 1; }))
            << name;
    }
}

TEST(Placement, DataRanksHoldTheSame) {
  const auto table = declare_parameters(gpt2_spec(small()));
  const grid::Layout layout{2, 3, 2, {2, 2}};
  const Placement first = place_parameters(table, layout, {1, 0, 1});
  const Placement other = place_parameters(table, layout, {1, 2, 1});
  ASSERT_EQ(first.parameters.size(), other.parameters.size());
  for (std::size_t i = 0; i < first.parameters.size(); ++i) {
    EXPECT_EQ(first.parameters[i].slabs, other.parameters[i].slabs);
    EXPECT_EQ(first.parameters[i].offset, other.parameters[i].offset);
  }
}

TEST(Placement, CutsQueryKeyAndValueByHeads) {
  const auto table = declare_parameters(gpt2_spec(small()));
  const Placement placement = place_parameters(table, {4, 1, 1, {4}}, {2, 0, 0});
  const LocalParameter weight = find(placement, "layers/1/attention/qkv/weight");
  EXPECT_EQ(weight.slabs, (Hyperslabs{{12, 6, 0, 24}, {36, 6, 0, 24}, {60, 6, 0, 24}}));
  EXPECT_EQ(weight.shape, Shape({18, 24}));
  const LocalParameter bias = find(placement, "layers/1/attention/qkv/bias");
  EXPECT_EQ(bias.slabs, (Hyperslabs{{12, 6, 0, 1}, {36, 6, 0, 1}, {60, 6, 0, 1}}));
  EXPECT_EQ(bias.shape, Shape({18}));
}

TEST(Placement, CutsRowsColumnsAndVocabulary) {
  const auto table = declare_parameters(gpt2_spec(small()));
  const Placement placement = place_parameters(table, {4, 1, 1, {4}}, {3, 0, 0});
  const auto slabs = [&](const std::string& name) { return find(placement, name).slabs; };
  EXPECT_EQ(slabs("layers/0/mlp/up/weight"), (Hyperslabs{{30, 10, 0, 24}}));
  EXPECT_EQ(slabs("layers/0/mlp/up/bias"), (Hyperslabs{{30, 10, 0, 1}}));
  EXPECT_EQ(slabs("layers/0/mlp/down/weight"), (Hyperslabs{{0, 24, 30, 10}}));
  EXPECT_EQ(slabs("layers/0/mlp/down/bias"), (Hyperslabs{{0, 24, 0, 1}}));
  EXPECT_EQ(slabs("layers/0/attention/projection/weight"), (Hyperslabs{{0, 24, 18, 6}}));
  // 61 rows over four ranks: 16 each, the last with 13 and three rows of padding.
  EXPECT_EQ(slabs("embedding/word"), (Hyperslabs{{48, 13, 0, 24}}));
  EXPECT_EQ(find(placement, "embedding/word").shape, Shape({16, 24}));
  EXPECT_FALSE(find(placement, "layers/0/mlp/down/bias").blocks[0].primary);
  EXPECT_TRUE(find(placement, "layers/0/mlp/up/bias").blocks[0].primary);
}

TEST(Placement, SharesTheTiedEmbeddingWithTheLastStage) {
  const auto table = declare_parameters(gpt2_spec(small()));
  const grid::Layout layout{1, 1, 4, {0, 2, 2, 0}};
  const Placement first = place_parameters(table, layout, {0, 0, 0});
  const Placement middle = place_parameters(table, layout, {0, 0, 1});
  const Placement last = place_parameters(table, layout, {0, 0, 3});
  EXPECT_FALSE(find(first, "embedding/word").shared);
  EXPECT_THROW(find(middle, "embedding/word"), InternalError);
  EXPECT_TRUE(find(last, "embedding/word").shared);
  EXPECT_GE(find(last, "embedding/word").offset, last.owned_size);
  EXPECT_EQ(last.parameters.size(), 3u);  // the final norm's two and the copy
}

TEST(Placement, AlignsAndDoesNotOverlap) {
  const auto table = declare_parameters(gpt2_spec(small()));
  for (const grid::Layout& layout : layouts()) {
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      const Placement placement = place_parameters(table, layout, layout.coordinates_of(rank));
      EXPECT_EQ(placement.owned_size % (layout.data * model::kParameterAlignment), 0);
      std::int64_t end = 0;
      for (const LocalParameter& local : placement.parameters) {
        EXPECT_EQ(local.offset % model::kParameterAlignment, 0);
        EXPECT_GE(local.offset, end);
        EXPECT_LE(local.elements(), local.shape.size());
        end = local.offset + local.shape.size();
        EXPECT_LE(end, local.shared ? placement.size : placement.owned_size);
      }
    }
  }
}

TEST(Placement, MatricesComeLayerByLayerAfterAllElse) {
  const auto table = declare_parameters(gpt2_spec(small()));
  for (const grid::Layout& layout : layouts()) {
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      const grid::Coordinates place = layout.coordinates_of(rank);
      const Placement placement = place_parameters(table, layout, place);
      std::vector<int> layers;  // in the order in which passes come to them
      for (int chunk = 0; chunk < layout.chunks; ++chunk) {
        const grid::LayerRange range = layout.layers_of(place.pipeline, chunk);
        for (int i = 0; i < range.count; ++i) layers.push_back(range.first + i);
      }
      ASSERT_EQ(placement.layers.size(), layers.size());
      std::int64_t end = placement.common_size;
      for (const Range& matrices : placement.layers) {
        EXPECT_EQ(matrices.begin, end);
        EXPECT_EQ(matrices.size() % (layout.data * model::kParameterAlignment), 0);
        end = matrices.end;
      }
      EXPECT_EQ(end, placement.owned_size);
      EXPECT_EQ(placement.layers_size(), end - placement.common_size);
      for (const LocalParameter& local : placement.parameters) {
        const Parameter& parameter = *local.parameter;
        const bool is_matrix =
            parameter.stage == StagePlacement::layer && parameter.shape.rank() == 2;
        if (!is_matrix) {
          EXPECT_TRUE(local.shared || local.offset + local.shape.size() <= placement.common_size);
          EXPECT_THROW(placement.layer_at(local.offset), InternalError);
          continue;
        }
        const std::size_t layer = placement.layer_at(local.offset);
        EXPECT_EQ(layers[layer], parameter.layer);
        EXPECT_LE(local.offset + local.shape.size(), placement.layers[layer].end);
      }
    }
  }
}

TEST(Placement, RefusesALayerThatNoStageHolds) {
  const auto table = declare_parameters(gpt2_spec(small()));
  EXPECT_THROW(place_parameters(table, {1, 1, 2, {2, 1}}, {0, 0, 0}), InternalError);
}

TEST(CutBoxes, PiecesAreTheElementsInOrder) {
  const auto table = declare_parameters(gpt2_spec(small()));
  const Placement placement = place_parameters(table, {2, 1, 1, {4}}, {1, 0, 0});
  std::mt19937 random(4);
  for (const LocalParameter& local : placement.parameters) {
    const auto list = [&](const Hyperslabs& slabs, std::vector<std::int64_t>& out) {
      for_each_element(slabs, local.parameter->shape,
                       [&](std::int64_t, std::int64_t index) { out.push_back(index); });
    };
    std::vector<std::int64_t> expected;
    list(local.slabs, expected);
    std::uniform_int_distribution<std::int64_t> cut(0, local.elements());
    for (int round = 0; round < 20; ++round) {
      std::vector<std::int64_t> cuts{0, cut(random), cut(random), cut(random), local.elements()};
      std::sort(cuts.begin(), cuts.end());
      std::vector<std::int64_t> pieces;
      for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
        const Hyperslabs slabs = grid::slice_hyperslabs(local.slabs, cuts[i], cuts[i + 1]);
        EXPECT_EQ(grid::count_elements(slabs), cuts[i + 1] - cuts[i]);
        grid::check_hyperslabs(local.parameter->name, local.parameter->shape, slabs);
        list(slabs, pieces);
      }
      EXPECT_EQ(pieces, expected) << local.parameter->name;
    }
  }
}

// ---------------------------------------------------------------------------- initial weights

/// The initial weights of all ranks of a layout put together; checks that padding is zero and that
/// copies are equal.
LogicalTensors initial_weights(const grid::Layout& layout) {
  const auto backend = device::make_host_backend(1);
  const auto table = declare_parameters(gpt2_spec(small()));
  LogicalTensors tensors = zeros(table);
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    model::ParameterStore store(*backend, table, layout, layout.coordinates_of(rank),
                                mixed_precision(DType::f32));
    store.initialize(1234);
    for (const LocalParameter& local : store.placement().parameters) {
      const std::vector<double> values = to_doubles(slice(store.weights(), local));
      std::vector<double>& tensor = tensors[local.parameter->name];
      for_each_element(local.slabs, local.parameter->shape, [&](std::int64_t at, std::int64_t i) {
        EXPECT_TRUE(tensor[i] == 0.0 || tensor[i] == values[at]) << local.parameter->name;
        tensor[i] = values[at];
      });
      for (std::size_t i = local.elements(); i < values.size(); ++i)
        EXPECT_EQ(values[i], 0.0) << "padding of " << local.parameter->name;
    }
  }
  return tensors;
}

TEST(InitialWeights, DoNotDependOnTheLayout) {
  const LogicalTensors serial = initial_weights(layouts().front());
  for (const grid::Layout& layout : layouts()) EXPECT_EQ(initial_weights(layout), serial);
}

TEST(InitialWeights, HaveTheStatedMoments) {
  const LogicalTensors weights = initial_weights(layouts().front());
  for (const Parameter& parameter : declare_parameters(gpt2_spec(small()))) {
    const std::vector<double>& values = weights.at(parameter.name);
    const double count = static_cast<double>(values.size());
    const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
    if (parameter.init != model::Init::normal) {
      const double constant = parameter.name.ends_with("weight") ? 1.0 : 0.0;
      for (double value : values) EXPECT_EQ(value, constant) << parameter.name;
      continue;
    }
    const bool output = parameter.name.find("projection") != std::string::npos ||
                        parameter.name.find("down") != std::string::npos;
    const double std = output ? 0.02 / std::sqrt(2.0 * 4) : 0.02;
    EXPECT_NEAR(mean, 0.0, 5 * std / std::sqrt(count)) << parameter.name;
    EXPECT_NEAR(norm(values) / std::sqrt(count), std, 5 * std / std::sqrt(2 * count))
        << parameter.name;
  }
}

TEST(InitialWeights, DifferBetweenParametersAndSeeds) {
  const auto backend = device::make_host_backend(1);
  model::ParameterStore store(*backend, declare_parameters(gpt2_spec(small())), {1, 1, 1, {4}}, {},
                              mixed_precision(DType::f32));
  const auto qkv = [&](int layer) {
    return to_doubles(store[fmt::format("layers/{}/attention/qkv/weight", layer)].weight);
  };
  store.initialize(1);
  const std::vector<double> first = qkv(0);
  EXPECT_NE(first, qkv(1));
  store.initialize(2);
  EXPECT_NE(first, qkv(0));
}

TEST(ParameterStore, RefusesNamesItDoesNotHold) {
  const auto backend = device::make_host_backend(1);
  const model::ParameterStore store(*backend, declare_parameters(gpt2_spec(small())),
                                    {1, 1, 2, {2, 2}}, {0, 0, 1}, mixed_precision(DType::f32));
  EXPECT_NO_THROW(store["layers/2/norm1/bias"]);
  try {
    store["layers/1/norm1/bias"];
    FAIL() << "found a parameter of another stage";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("does not hold parameter 'layers/1/norm1/bias'"),
              std::string::npos)
        << error.what();
  }
}

/// Calls use(rank, its part) for the tensor ranks that share `parameter`.
template <typename Use>
void for_each_tensor_rank(const Parameter& parameter, int ranks, const Use& use) {
  const std::vector<Parameter> table = {parameter};
  for (int rank = 0; rank < ranks; ++rank)
    use(rank, place_parameters(table, {ranks, 1, 1, {1}}, {rank, 0, 0}).parameters.front());
}

TEST(Placement, ShardsUnequalRowBlocksByThemselves) {
  // Queries, keys and values of 4 and 2 heads of 3 rows.
  const Parameter qkv{.name = "layers/0/qkv",
                      .shape = {24, 5},
                      .sharding = model::TensorSharding::rows,
                      .row_blocks = {12, 6, 6}};
  for_each_tensor_rank(qkv, 2, [](int rank, const LocalParameter& local) {
    EXPECT_EQ(local.shape, Shape({12, 5}));
    EXPECT_EQ(
        local.slabs,
        (Hyperslabs{{6 * rank, 6, 0, 5}, {12 + 3 * rank, 3, 0, 5}, {18 + 3 * rank, 3, 0, 5}}));
  });
  EXPECT_THROW(for_each_tensor_rank(qkv, 4, [](int, const LocalParameter&) {}), InternalError);
  model::ParameterTableBuilder table;
  EXPECT_THROW(table.add({.name = "x", .shape = {24, 5}, .row_blocks = {12, 6}}), InternalError);
}

TEST(Placement, CopiesShardsWhereThereAreMoreTensorRanks) {
  // Keys of 2 heads of 3 rows, on 4 ranks.
  const Parameter keys{.name = "layers/0/keys",
                       .shape = {6, 5},
                       .sharding = model::TensorSharding::rows,
                       .row_blocks = {{6, 2}}};
  for_each_tensor_rank(keys, 4, [](int rank, const LocalParameter& local) {
    EXPECT_EQ(local.shape, Shape({3, 5}));
    EXPECT_EQ(local.slabs, (Hyperslabs{{rank / 2 * 3, 3, 0, 5}}));
    ASSERT_EQ(local.blocks.size(), 1u);
    EXPECT_EQ(local.blocks[0].copies, 2);
    EXPECT_EQ(local.blocks[0].primary, rank % 2 == 0);
  });
  for_each_tensor_rank(keys, 2, [](int rank, const LocalParameter& local) {
    EXPECT_EQ(local.slabs, (Hyperslabs{{rank * 3, 3, 0, 5}}));
    ASSERT_EQ(local.blocks.size(), 1u);
    EXPECT_EQ(local.blocks[0].copies, 1);
    EXPECT_TRUE(local.blocks[0].primary);
  });
  EXPECT_THROW(for_each_tensor_rank(keys, 3, [](int, const LocalParameter&) {}), InternalError);
}

TEST(Placement, CopiesRowBlocksOfFewerShards) {
  // Queries of 4 heads, keys and values of 2, of 3 rows each, on 4 ranks.
  const Parameter qkv{.name = "layers/0/qkv",
                      .shape = {24, 5},
                      .sharding = model::TensorSharding::rows,
                      .row_blocks = {12, {6, 2}, {6, 2}}};
  for_each_tensor_rank(qkv, 4, [](int rank, const LocalParameter& local) {
    const std::int64_t head = rank / 2;
    EXPECT_EQ(local.shape, Shape({9, 5}));
    EXPECT_EQ(
        local.slabs,
        (Hyperslabs{{3 * rank, 3, 0, 5}, {12 + 3 * head, 3, 0, 5}, {18 + 3 * head, 3, 0, 5}}));
    ASSERT_EQ(local.blocks.size(), 2u) << "keys and values follow each other";
    EXPECT_EQ(local.blocks[0].range, (Range{0, 15}));
    EXPECT_EQ(local.blocks[0].copies, 1);
    EXPECT_TRUE(local.blocks[0].primary);
    EXPECT_EQ(local.blocks[1].range, (Range{15, 45}));
    EXPECT_EQ(local.blocks[1].copies, 2);
    EXPECT_EQ(local.blocks[1].primary, rank % 2 == 0);
    EXPECT_EQ(local.blocks_at(14).copies, 1);
    EXPECT_EQ(local.blocks_at(15).copies, 2);
  });
  // A head must not be divided.
  const Parameter six{.name = "layers/0/keys",
                      .shape = {12, 5},
                      .sharding = model::TensorSharding::rows,
                      .row_blocks = {{12, 6}}};
  EXPECT_THROW(for_each_tensor_rank(six, 4, [](int, const LocalParameter&) {}), InternalError);
}

}  // namespace
}  // namespace trireme::test
