#include "model/parameter_table.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.hpp"

namespace trireme::model {
namespace {

/// Appends parameters with the attributes that their kind implies.
class TableBuilder {
 public:
  void at(Home home, int layer = 0) {
    home_ = home;
    layer_ = layer;
  }

  void norm(const std::string& name, std::int64_t size) {
    add({.name = name + "/weight", .shape = {size}, .init = Init::ones, .of_stream = true});
    add({.name = name + "/bias", .shape = {size}, .of_stream = true});
  }

  /// weight [out, in] and bias [out]; cutting the columns of the weight leaves the bias whole on
  /// every tensor rank, which adds it to the stream.
  void linear(const std::string& name, std::int64_t out, std::int64_t in, double std, Split split,
              int blocks = 1) {
    add({.name = name + "/weight",
         .shape = {out, in},
         .init = Init::normal,
         .init_std = std,
         .weight_decay = true,
         .split = split,
         .blocks = blocks});
    add({.name = name + "/bias",
         .shape = {out},
         .split = split == Split::rows ? Split::rows : Split::none,
         .blocks = blocks,
         .of_stream = split == Split::columns});
  }

  void embedding(const std::string& name, std::int64_t rows, std::int64_t hidden, double std,
                 Split split, bool tied) {
    add({.name = name,
         .shape = {rows, hidden},
         .init = Init::normal,
         .init_std = std,
         .weight_decay = true,
         .split = split,
         .tied = tied,
         .of_stream = split == Split::none});
  }

  std::vector<Parameter> table;

 private:
  void add(Parameter parameter) {
    parameter.home = home_;
    parameter.layer = layer_;
    table.push_back(std::move(parameter));
  }

  Home home_ = Home::first_stage;
  int layer_ = 0;
};

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
    if (parameter.home == Home::first_stage) return is_first_;
    if (parameter.home == Home::last_stage) return is_last_;
    return std::ranges::any_of(
        chunks_, [&](const grid::LayerRange& layers) { return layers.contains(parameter.layer); });
  }

 private:
  bool is_first_, is_last_;
  std::vector<grid::LayerRange> chunks_;
};

/// The local shape, padding included, and the boxes of tensor rank `index` of `shards`.
void cut_for_tensor_rank(LocalParameter& local, int shards, int index) {
  const Parameter& parameter = *local.parameter;
  const std::int64_t rows = parameter.shape[0];
  const std::int64_t columns = parameter.shape.rank() == 2 ? parameter.shape[1] : 1;
  local.shape = parameter.shape;
  switch (parameter.split) {
    case Split::none:
      local.boxes = {{0, rows, 0, columns}};
      return;
    case Split::rows: {
      const std::int64_t block = rows / parameter.blocks;
      TRIREME_CHECK(rows % (parameter.blocks * shards) == 0, "{} rows of '{}' over {} tensor ranks",
                    rows, parameter.name, shards);
      for (int b = 0; b < parameter.blocks; ++b)
        local.boxes.push_back({b * block + index * (block / shards), block / shards, 0, columns});
      local.shape[0] = rows / shards;
      return;
    }
    case Split::columns:
      TRIREME_CHECK(columns % shards == 0, "{} columns of '{}' over {} tensor ranks", columns,
                    parameter.name, shards);
      local.boxes = {{0, rows, index * (columns / shards), columns / shards}};
      local.shape[1] = columns / shards;
      return;
    case Split::vocabulary: {
      const grid::ShardRange range = grid::padded_shard(rows, shards, index);
      if (range.size() > 0) local.boxes = {{range.begin, range.size(), 0, columns}};
      local.shape[0] = range.padded;
      return;
    }
  }
}

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

std::vector<Parameter> gpt_parameters(const ModelConfig& config) {
  const double std = config.init_std;
  const double output_std = std / std::sqrt(2.0 * static_cast<double>(config.layers));
  const std::int64_t h = config.hidden;
  TableBuilder builder;
  builder.at(Home::first_stage);
  builder.embedding("embedding/word", config.vocab, h, std, Split::vocabulary, /*tied=*/true);
  if (config.embedding_layernorm) builder.norm("embedding/norm", h);
  builder.embedding("embedding/position", config.positions, h, std, Split::none, /*tied=*/false);
  for (int layer = 0; layer < config.layers; ++layer) {
    builder.at(Home::layer, layer);
    const std::string prefix = fmt::format("layers/{}/", layer);
    builder.norm(prefix + "norm1", h);
    builder.linear(prefix + "attention/qkv", 3 * h, h, std, Split::rows, /*blocks=*/3);
    builder.linear(prefix + "attention/projection", h, h, output_std, Split::columns);
    builder.norm(prefix + "norm2", h);
    builder.linear(prefix + "mlp/up", config.ffn, h, std, Split::rows);
    builder.linear(prefix + "mlp/down", h, config.ffn, output_std, Split::columns);
  }
  builder.at(Home::last_stage);
  builder.norm("final_norm", h);
  return std::move(builder.table);
}

Placement place_parameters(const std::vector<Parameter>& table, const grid::Layout& layout,
                           const grid::Coordinates& place) {
  Placement placement;
  const auto append = [&](const Parameter& parameter, bool shared) {
    LocalParameter local{.parameter = &parameter, .offset = placement.size, .shared = shared};
    cut_for_tensor_rank(local, layout.tensor, place.tensor);
    local.primary = !shared && (parameter.split != Split::none || place.tensor == 0);
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
    if (parameter.home == Home::layer && parameter.shape.rank() == 2)
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

std::int64_t count_elements(const std::vector<Parameter>& table) {
  std::int64_t sum = 0;
  for (const Parameter& parameter : table) sum += parameter.shape.size();
  return sum;
}

}  // namespace trireme::model
