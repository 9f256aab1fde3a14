// The parameter table: each parameter of the model described once; and its placement, the part of
// the table that one rank holds. Allocation, initialization, optimizer shards, the gradient norm,
// checkpoints and the memory plan all read them; nothing else decides by name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor.hpp"
#include "grid/layout.hpp"

namespace trireme::model {

/// How initial values are drawn: constants, or normal with mean 0 and the parameter's `init_std`,
/// truncated at its `init_cutoff`.
enum class Init { zeros, ones, normal };

/// Which pipeline stage owns a parameter: the first, the one with its layer, or the last.
enum class StagePlacement { first_stage, layer, last_stage };

/// How tensor ranks share a parameter: all hold a copy; or one axis is sharded into equal parts; a
/// vocabulary axis is sharded into equal parts of ceil(V / T) rows, the last of which may end in
/// padding.
enum class TensorSharding { none, rows, columns, vocabulary };

/// Rows of a parameter that TensorSharding::rows shards separately: q, k or v of a fused
/// projection, gate or up of a gated MLP.
struct RowBlock {
  RowBlock(std::int64_t rows, int max_shards = 0) : rows(rows), max_shards(max_shards) {}

  std::int64_t rows;
  /// The parts that a shard must not divide (key and value heads): at most so many shards. With
  /// more tensor ranks, ranks / max_shards consecutive ranks hold copies of one shard, each of
  /// which has a part of its gradient (optim::CopiedGradients sums them). 0: no limit.
  int max_shards;

  /// The number of shards on `tensor_ranks`, which must divide max_shards or be a multiple of it.
  int shards(int tensor_ranks) const;
};

/// One logical parameter: independent of the layout.
struct Parameter {
  std::string name;  ///< logical name, such as "layers/3/mlp/up/weight"
  Shape shape;       ///< logical shape, one or two axes
  Init init = Init::zeros;
  double init_std = 0.0;
  double init_cutoff = 0.0;   ///< in units of init_std; 0: not truncated
  bool weight_decay = false;  ///< matrices decay; biases and norms do not
  StagePlacement stage = StagePlacement::layer;
  int layer = 0;  ///< for StagePlacement::layer
  TensorSharding sharding = TensorSharding::none;
  /// TensorSharding::rows shards each of these separately; empty: all rows are one block.
  std::vector<RowBlock> row_blocks = {};
  bool tied = false;  ///< the last stage holds a copy as well, its output projection
  /// Applied to the residual stream: under sequence parallelism each tensor rank has the gradient
  /// of its positions alone, and the parameter's is their sum.
  bool sequence_parallel = false;

  /// row_blocks, or all rows as one.
  std::vector<RowBlock> blocks() const {
    return row_blocks.empty() ? std::vector{RowBlock(shape[0])} : row_blocks;
  }
};

/// Groups of parameters that optimizers treat differently: matrices of the first stage, of layers
/// and of the last stage; and everything else, biases and norms.
enum class ParameterGroup { embedding, matrix, head, vector };
ParameterGroup group_of(const Parameter& parameter);

/// Collects the parameters that layers declare, in checkpoint order.
class ParameterTableBuilder {
 public:
  /// Where the parameters declared from now on belong.
  void at(StagePlacement stage, int layer = 0) {
    stage_ = stage;
    layer_ = layer;
  }
  /// Declares one; its `stage` and `layer` are those of the latest at().
  void add(Parameter parameter);

  std::vector<Parameter> take() { return std::move(table_); }

 private:
  StagePlacement stage_ = StagePlacement::first_stage;
  int layer_ = 0;
  std::vector<Parameter> table_;
};

/// Elements of all logical parameters, each counted once.
std::int64_t count_elements(const std::vector<Parameter>& table);

/// Elements [begin, end).
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
  bool contains(std::int64_t element) const { return begin <= element && element < end; }
  bool operator==(const Range&) const = default;
};

/// Row blocks of a rank's part of a parameter that follow each other in memory and that the same
/// tensor ranks hold.
struct LocalBlocks {
  Range range;          ///< of the flat buffers; padding is left out
  int copies = 1;       ///< consecutive tensor ranks that hold them: see RowBlock::max_shards
  bool primary = true;  ///< false where an earlier tensor rank holds them and counts them
};

/// A rank's part of one parameter, placed in the rank's flat buffers.
struct LocalParameter {
  const Parameter* parameter = nullptr;
  Shape shape;              ///< local shape, padding included
  std::int64_t offset = 0;  ///< in the flat buffers; a multiple of kParameterAlignment
  grid::Hyperslabs slabs;   ///< its part of the logical tensor in memory order; then padding
  bool shared = false;      ///< the last stage's copy of the tied embedding: received, not updated
  std::vector<LocalBlocks> blocks;  ///< of the elements that are part of the logical tensor

  /// Elements that are part of the logical tensor.
  std::int64_t elements() const { return grid::count_elements(slabs); }
  /// The blocks with `element` of the flat buffers.
  const LocalBlocks& blocks_at(std::int64_t element) const;
};

/// Elements to which every parameter's place in the flat buffers is aligned: 64 bytes of fp32.
inline constexpr std::int64_t kParameterAlignment = 16;

/// The part of the table that one rank holds, in the order of the flat buffers: embeddings, heads
/// and all vectors, which are never sharded over data ranks; then the matrices, layer by layer;
/// then shared copies.
struct Placement {
  std::vector<LocalParameter> parameters;
  std::vector<Range> layers;     ///< the matrices of each layer of this rank, in consecutive order
  std::int64_t common_size = 0;  ///< elements before those matrices
  std::int64_t owned_size = 0;   ///< elements before the shared copies: what is updated here
  std::int64_t size = 0;         ///< elements of the flat buffers

  /// Elements of all layers' matrices.
  std::int64_t layers_size() const { return owned_size - common_size; }
  /// Which of `layers` has `element`.
  std::size_t layer_at(std::int64_t element) const;
};

/// The parts of `table` that the rank at `place` holds. `table` must outlive the result.
/// `common_size` and the size of each of `layers` are rounded up so that they divide by layout.data
/// * kParameterAlignment.
Placement place_parameters(const std::vector<Parameter>& table, const grid::Layout& layout,
                           const grid::Coordinates& place);

}  // namespace trireme::model
