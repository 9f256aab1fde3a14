// The parameter table: each parameter of the model described once. Allocation, initialization,
// optimizer shards, the gradient norm, checkpoints and the memory plan all read it; nothing else
// decides by name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/shape.hpp"

namespace trireme::model {

/// How initial values are drawn: constants, or normal with mean 0 and the parameter's `init_std`.
enum class Init { zeros, ones, normal };

/// Which pipeline stage owns a parameter: the first, the one with its layer, or the last.
enum class StagePlacement { first_stage, layer, last_stage };

/// How tensor ranks share a parameter: all hold a copy; or one axis is sharded into equal parts; a
/// vocabulary axis is sharded into equal parts of ceil(V / T) rows, the last of which may end in
/// padding.
enum class TensorSharding { none, rows, columns, vocabulary };

/// One logical parameter: independent of the layout.
struct Parameter {
  std::string name;  ///< logical name, such as "layers/3/mlp/up/weight"
  Shape shape;       ///< logical shape, one or two axes
  Init init = Init::zeros;
  double init_std = 0.0;
  bool weight_decay = false;  ///< matrices decay; biases and norms do not
  StagePlacement stage = StagePlacement::layer;
  int layer = 0;  ///< for StagePlacement::layer
  TensorSharding sharding = TensorSharding::none;
  /// TensorSharding::rows shards each of these row blocks by itself: q, k and v of a fused
  /// projection, gate and up of a gated MLP. Their sizes, which need not be equal; empty: all rows
  /// are one block.
  std::vector<std::int64_t> row_blocks = {};
  /// For rows and columns, the number of parts that a shard must not divide (heads): at most so
  /// many shards. With more tensor ranks, ranks / max_shards consecutive ranks hold copies of one
  /// shard, each of which has a part of its gradient (optim::CopiedGradients sums them). 0: no
  /// limit.
  int max_shards = 0;
  bool tied = false;  ///< the last stage holds a copy as well, its output projection
  /// Applied to the residual stream: under sequence parallelism each tensor rank has the gradient
  /// of its own positions alone, and the parameter's is their sum.
  bool sequence_parallel = false;
};

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

}  // namespace trireme::model
