// Which rank does what: pure arithmetic, no MPI.
#pragma once

#include <cstdint>
#include <string>
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
  bool operator==(const LayerRange&) const = default;
};

/// The extents of the three axes and the transformer layers of each pipeline stage.
struct Layout {
  int tensor = 1;
  int data = 1;
  int pipeline = 1;
  std::vector<int> partition;  ///< layers per stage, `pipeline` entries, zero allowed

  int ranks() const { return tensor * data * pipeline; }

  /// rank = tensor + T * (data + D * pipeline).
  int rank_of(const Coordinates& place) const;
  Coordinates coordinates_of(int rank) const;

  /// The layers of a stage.
  LayerRange layers_of(int stage) const;

  bool is_first(int stage) const { return stage == 0; }
  bool is_last(int stage) const { return stage == pipeline - 1; }
};

/// `total` elements cut for `shards` ranks: shard r holds [begin, end) and, when the count does not
/// divide, the last shards have fewer elements than `padded`, the equal size that is allocated.
struct ShardRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t padded = 0;
  std::int64_t size() const { return end - begin; }
};

/// The range of shard `index` of `shards` when `total` is cut into equal padded parts of ceil(total
/// / shards).
ShardRange padded_shard(std::int64_t total, int shards, int index);

}  // namespace trireme::grid
