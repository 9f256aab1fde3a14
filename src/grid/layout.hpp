// Which rank does what: pure arithmetic, no MPI.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor.hpp"

namespace trireme::grid {

/// A rank's place along the three axes.
struct Coordinates {
  int tensor = 0;
  int data = 0;
  int pipeline = 0;
  bool operator==(const Coordinates&) const = default;
};

/// Consecutive transformer layers: [first, first + count).
struct LayerRange {
  int first = 0;
  int count = 0;
  bool contains(int layer) const { return layer >= first && layer < first + count; }
  bool operator==(const LayerRange&) const = default;
};

/// The extents of the three axes and the transformer layers of each pipeline stage. A stage's
/// layers come in `chunks` equal pieces: chunk c of stage s among p stages is link c * p + s of the
/// chain that a sample passes.
struct Layout {
  int tensor = 1;
  int data = 1;
  int pipeline = 1;
  std::vector<int> partition;  ///< layers per stage, `pipeline` entries, zero allowed
  int chunks = 1;              ///< divides each entry of `partition`

  int ranks() const { return tensor * data * pipeline; }

  /// rank = tensor + T * (data + D * pipeline).
  int rank_of(const Coordinates& place) const;
  /// The place of `rank`: rank_of() backwards. Throws InternalError for ranks that do not exist.
  Coordinates coordinates_of(int rank) const;

  /// The layers of a stage's chunk. Throws InternalError for stages and chunks that do not exist.
  LayerRange layers_of(int stage, int chunk = 0) const;

  bool is_first(int stage) const { return stage == 0; }
  bool is_last(int stage) const { return stage == pipeline - 1; }
};

/// One rank's elements [begin, end) of a total that is cut into equal parts. When the total does
/// not divide, the last parts have fewer elements than `padded`, the size that every rank
/// allocates.
struct ShardRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t padded = 0;
  std::int64_t size() const { return end - begin; }
};

/// The range of shard `index` when `total` is cut into `shards` parts of ceil(total / shards),
/// rounded up, for parts of 256 and more, to a multiple of a power of two of at most 128 that adds
/// less than an eighth: GEMMs want such sides. 50,257 becomes 50,304.
ShardRange padded_shard(std::int64_t total, int shards, int index);

// Which elements of a logical tensor a rank's memory holds, as hyperslabs (HDF5's term).

/// Rows [row, row + rows) and columns [column, column + columns) of a tensor. A tensor of one axis
/// has one column: its elements are its rows.
struct Hyperslab {
  std::int64_t row = 0;
  std::int64_t rows = 0;
  std::int64_t column = 0;
  std::int64_t columns = 1;

  std::int64_t size() const { return rows * columns; }
  bool operator==(const Hyperslab&) const = default;
};

/// The concatenation of hyperslabs in memory, each row-major. They must be disjoint and sorted in
/// the tensor's row-major order: each begins after the last element of the one before, in a later
/// row unless both lie in one row. This holds for the row blocks of q, k and v, for a column shard,
/// and for every result of slice_hyperslabs() on them.
using Hyperslabs = std::vector<Hyperslab>;

/// Number of elements in `slabs`.
std::int64_t count_elements(const Hyperslabs& slabs);

/// The hyperslab of a whole tensor of one or two axes; InternalError for others.
Hyperslab whole_tensor(const Shape& shape);

/// The hyperslabs of elements [begin, end) of the memory of `slabs`: what one rank owns of a shard
/// that ZeRO partitions into flat ranges, which may begin and end inside a row. Throws
/// InternalError when the range is not inside.
Hyperslabs slice_hyperslabs(const Hyperslabs& slabs, std::int64_t begin, std::int64_t end);

/// Throws InternalError naming the tensor when a slab leaves `shape` (one or two axes) or the order
/// above does not hold.
void check_hyperslabs(const std::string& tensor, const Shape& shape, const Hyperslabs& slabs);

}  // namespace trireme::grid
