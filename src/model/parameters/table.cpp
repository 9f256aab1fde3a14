#include "model/parameters/table.hpp"

#include <algorithm>
#include <numeric>

#include "core/error.hpp"
#include "deck/model.hpp"

namespace trireme::model {
namespace {

/// Which parameters one stage owns. It knows the stage's layers from the start: to find each
/// parameter's stage among all of them takes minutes for a thousand stages.
class Ownership {
 public:
  Ownership(const grid::Layout& layout, int stage)
      : is_first_(layout.is_first(stage)), is_last_(layout.is_last(stage)) {
    for (int chunk = 0; chunk < layout.chunks; ++chunk)
      chunks_.push_back(layout.layers_of(stage, chunk));
  }

  bool contains(const Parameter& parameter) const {
    if (parameter.stage == StagePlacement::first_stage) return is_first_;
    if (parameter.stage == StagePlacement::last_stage) return is_last_;
    return std::ranges::any_of(
        chunks_, [&](const grid::LayerRange& layers) { return layers.contains(parameter.layer); });
  }

 private:
  bool is_first_, is_last_;
  std::vector<grid::LayerRange> chunks_;
};

/// Appends elements of the tensor to `local`.
void append_slab(LocalParameter& local, const grid::Hyperslab& slab, int copies, bool primary) {
  local.slabs.push_back(slab);
  std::vector<LocalBlocks>& blocks = local.blocks;
  const std::int64_t begin = blocks.empty() ? local.offset : blocks.back().range.end;
  const LocalBlocks next{{begin, begin + slab.size()}, copies, primary};
  if (blocks.empty() || blocks.back().copies != copies)
    blocks.push_back(next);
  else
    blocks.back().range.end = next.range.end;
}

/// The part of tensor rank `rank` of `ranks` in `local`: its shape, padding included, slabs and
/// blocks.
void shard_for_tensor_rank(LocalParameter& local, int ranks, int rank) {
  const Parameter& parameter = *local.parameter;
  const std::int64_t rows = parameter.shape[0];
  const std::int64_t columns = parameter.shape.rank() == 2 ? parameter.shape[1] : 1;
  local.shape = parameter.shape;
  switch (parameter.sharding) {
    case TensorSharding::none:
      // Whole on every rank, as is its gradient, which is not to be summed.
      append_slab(local, {0, rows, 0, columns}, /*copies=*/1, /*primary=*/rank == 0);
      return;
    case TensorSharding::rows: {
      std::int64_t begin = 0;
      local.shape[0] = 0;
      for (const RowBlock& block : parameter.blocks()) {
        const int shards = block.shards(ranks), copies = ranks / shards;
        TRIREME_CHECK(block.rows % shards == 0, "{} rows of '{}' over {} tensor ranks", block.rows,
                      parameter.name, shards);
        const std::int64_t size = block.rows / shards;
        append_slab(local, {begin + rank / copies * size, size, 0, columns}, copies,
                    /*primary=*/rank % copies == 0);
        local.shape[0] += size;
        begin += block.rows;
      }
      return;
    }
    case TensorSharding::columns:
      TRIREME_CHECK(columns % ranks == 0, "{} columns of '{}' over {} tensor ranks", columns,
                    parameter.name, ranks);
      local.shape[1] = columns / ranks;
      append_slab(local, {0, rows, rank * local.shape[1], local.shape[1]}, 1, true);
      return;
    case TensorSharding::vocabulary: {
      const grid::ShardRange range = grid::padded_shard(rows, ranks, rank);
      if (range.size() > 0) append_slab(local, {range.begin, range.size(), 0, columns}, 1, true);
      local.shape[0] = range.padded;
      return;
    }
  }
}

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

int RowBlock::shards(int tensor_ranks) const {
  if (max_shards == 0) return tensor_ranks;
  const auto shards = static_cast<int>(deck::shards_of_kv_heads(max_shards, tensor_ranks));
  TRIREME_CHECK(shards > 0, "{} tensor ranks hold rows of {} parts", tensor_ranks, max_shards);
  return shards;
}

const LocalBlocks& LocalParameter::blocks_at(std::int64_t element) const {
  const auto found = std::ranges::find_if(
      blocks, [&](const LocalBlocks& each) { return each.range.contains(element); });
  TRIREME_CHECK(found != blocks.end(), "'{}' has no element {}", parameter->name, element);
  return *found;
}

ParameterGroup group_of(const Parameter& parameter) {
  if (parameter.shape.rank() != 2) return ParameterGroup::vector;
  switch (parameter.stage) {
    case StagePlacement::first_stage:
      return ParameterGroup::embedding;
    case StagePlacement::layer:
      return ParameterGroup::matrix;
    case StagePlacement::last_stage:
      return ParameterGroup::head;
  }
  throw InternalError("an unknown stage of '{}'", parameter.name);
}

void ParameterTableBuilder::add(Parameter parameter) {
  if (!parameter.row_blocks.empty()) {
    std::int64_t rows = 0;
    for (const RowBlock& block : parameter.row_blocks) rows += block.rows;
    TRIREME_CHECK(rows == parameter.shape[0], "the row blocks of '{}' have {} of its {} rows",
                  parameter.name, rows, parameter.shape[0]);
  }
  parameter.stage = stage_;
  parameter.layer = layer_;
  table_.push_back(std::move(parameter));
}

std::int64_t count_elements(const std::vector<Parameter>& table) {
  std::int64_t sum = 0;
  for (const Parameter& parameter : table) sum += parameter.shape.size();
  return sum;
}

Placement place_parameters(const std::vector<Parameter>& table, const grid::Layout& layout,
                           const grid::Coordinates& place) {
  Placement placement;
  const auto append = [&](const Parameter& parameter, bool shared) {
    LocalParameter local{.parameter = &parameter, .offset = placement.size, .shared = shared};
    shard_for_tensor_rank(local, layout.tensor, place.tensor);
    if (shared)
      for (LocalBlocks& blocks : local.blocks) blocks.primary = false;
    placement.size += round_up(local.shape.size(), kParameterAlignment);
    placement.parameters.push_back(std::move(local));
  };
  const auto pad = [&] {
    placement.size = round_up(placement.size, layout.data * kParameterAlignment);
  };
  const int layers = std::accumulate(layout.partition.begin(), layout.partition.end(), 0);
  const Ownership owned(layout, place.pipeline);
  std::vector<const Parameter*> matrices;  // of layers
  for (const Parameter& parameter : table) {
    TRIREME_CHECK(parameter.layer < layers, "no stage holds layer {}", parameter.layer);
    if (!owned.contains(parameter)) continue;
    if (parameter.stage == StagePlacement::layer && parameter.shape.rank() == 2)
      matrices.push_back(&parameter);
    else
      append(parameter, /*shared=*/false);
  }
  pad();
  placement.common_size = placement.size;
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    if (i == 0 || matrices[i]->layer != matrices[i - 1]->layer)
      placement.layers.push_back({placement.size, 0});
    append(*matrices[i], /*shared=*/false);
    if (i + 1 == matrices.size() || matrices[i + 1]->layer != matrices[i]->layer) {
      pad();
      placement.layers.back().end = placement.size;
    }
  }
  placement.owned_size = placement.size;
  for (const Parameter& parameter : table)
    if (parameter.tied && layout.is_last(place.pipeline) && !layout.is_first(place.pipeline))
      append(parameter, /*shared=*/true);
  return placement;
}

std::size_t Placement::layer_at(std::int64_t element) const {
  const auto found =
      std::upper_bound(layers.begin(), layers.end(), element,
                       [](std::int64_t value, const Range& layer) { return value < layer.end; });
  TRIREME_CHECK(found != layers.end() && found->contains(element), "no layer has element {}",
                element);
  return found - layers.begin();
}

}  // namespace trireme::model
