// Which rank does what: pure arithmetic, no MPI.
#pragma once

#include <cstdint>
#include <vector>

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

}  // namespace trireme::grid
