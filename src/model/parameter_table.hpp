// The parameter table: each parameter of the model described once. Allocation, initialisation,
// optimizer shards, the gradient norm, checkpoints and the memory plan all read it; nothing else
// decides by name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/shape.hpp"
#include "grid/boxes.hpp"
#include "grid/layout.hpp"
#include "model/config.hpp"

namespace trireme::model {

/// How initial values are drawn: constants, or normal with mean 0 and the parameter's `init_std`.
enum class Init { zeros, ones, normal };

/// Which pipeline stage owns a parameter: the first, the one with its layer, or the last.
enum class Home { first_stage, layer, last_stage };

/// How tensor ranks share a parameter: all hold a copy; or one axis is cut into equal parts; a
/// vocabulary axis is cut into equal parts of ceil(V / T) rows, the last of which may end in
/// padding.
enum class Split { none, rows, columns, vocabulary };

/// One logical parameter: independent of the layout.
struct Parameter {
  std::string name;  ///< logical name, such as "layers/3/mlp/up/weight"
  Shape shape;       ///< logical shape, one or two axes
  Init init = Init::zeros;
  double init_std = 0.0;
  bool weight_decay = false;  ///< matrices decay; biases and norms do not
  Home home = Home::layer;
  int layer = 0;  ///< for Home::layer
  Split split = Split::none;
  /// Split::rows cuts each of `blocks` equal row blocks: q, k and v of the fused projection.
  int blocks = 1;
  bool tied = false;  ///< the last stage holds a copy as well, its output projection
  /// Applied to the residual stream: where that is cut among tensor ranks, each has the gradient of
  /// its own positions alone, and the parameter's is their sum.
  bool of_stream = false;
};

/// All parameters of a GPT in checkpoint order. Shapes and names: the checkpoint format. Output
/// projections are initialised with init_std / sqrt(2 layers) (Radford et al. 2019, section 2.3).
std::vector<Parameter> gpt_parameters(const ModelConfig& config);

/// A rank's part of one parameter, placed in the rank's flat buffers.
struct LocalParameter {
  const Parameter* parameter = nullptr;
  Shape shape;              ///< local shape, padding included
  std::int64_t offset = 0;  ///< in the flat buffers; a multiple of kParameterAlignment
  grid::Boxes boxes;        ///< its part of the logical tensor in memory order; then padding
  bool shared = false;      ///< the last stage's copy of the tied embedding: received, not updated
  bool primary = true;      ///< false where tensor rank 0 holds an identical copy and counts it

  /// Elements that are part of the logical tensor.
  std::int64_t elements() const { return grid::count_elements(boxes); }
};

/// Elements to which every parameter's place in the flat buffers is aligned: 64 bytes of fp32.
inline constexpr std::int64_t kParameterAlignment = 16;

/// Elements [begin, end).
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
  bool contains(std::int64_t element) const { return begin <= element && element < end; }
  bool operator==(const Range&) const = default;
};

/// What one rank holds of the table, in the order of the flat buffers: what is needed all the time
/// or takes little memory, which are the embeddings and all vectors; then the matrices, layer by
/// layer; then shared copies.
struct Placement {
  std::vector<LocalParameter> parameters;
  std::vector<Range> layers;     ///< the matrices of each layer of this rank, one behind the other
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

/// Elements of all logical parameters, each counted once.
std::int64_t count_elements(const std::vector<Parameter>& table);

}  // namespace trireme::model
