// Which part of the parameter table one rank holds, and where in its flat buffers.
#pragma once

#include <cstdint>
#include <vector>

#include "grid/hyperslabs.hpp"
#include "grid/layout.hpp"
#include "model/parameters/table.hpp"

namespace trireme::model {

/// A rank's part of one parameter, placed in the rank's flat buffers.
struct LocalParameter {
  const Parameter* parameter = nullptr;
  Shape shape;              ///< local shape, padding included
  std::int64_t offset = 0;  ///< in the flat buffers; a multiple of kParameterAlignment
  grid::Hyperslabs slabs;   ///< its part of the logical tensor in memory order; then padding
  bool shared = false;      ///< the last stage's copy of the tied embedding: received, not updated
  bool primary = true;      ///< false where an earlier tensor rank holds a copy and counts it
  int copies = 1;  ///< consecutive tensor ranks that hold this shard: see Parameter::max_shards

  /// Elements that are part of the logical tensor.
  std::int64_t elements() const { return grid::count_elements(slabs); }
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

}  // namespace trireme::model
