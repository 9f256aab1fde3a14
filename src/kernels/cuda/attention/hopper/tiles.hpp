// The tiles of the attention kernels for Hopper, and which block works on which of them. Pure
// arithmetic, checked on the CPU.
#pragma once

#include "kernels/cuda/attention/tiles.hpp"
#include "kernels/cuda/hopper/layouts.hpp"

namespace trireme::kernels::cuda {

/// Whether heads of `d` elements, aligned to 16 bytes as `aligned` says, are for the kernels that
/// copy boxes: the strides of their tensors have to be multiples of 16 bytes.
constexpr bool fits_boxes(std::int64_t d, bool aligned) {
  return aligned && d % 8 == 0 && padded_head(d) >= 64 && padded_head(d) <= 128;
}

/// What the forward pass pads heads to.
using BoxForwardHeads = HeadSizes<64, 80, 96, 112, 128>;

/// The forward pass for heads padded to D: one warpgroup copies, kConsumers others own 64 queries
/// each of a block's kQueries and walk together over tiles of kKeys keys, of which a ring of
/// kStages is in shared memory.
template <int D>
struct BoxForwardTile {
  static constexpr int kConsumers = 2;
  static constexpr int kThreads = 128 * (1 + kConsumers);
  static constexpr int kQueries = 64 * kConsumers;
  static constexpr int kKeys = 128;
  static constexpr int kStages = D <= 64 ? 4 : 2;
  static constexpr int kPanels = panels_of(D);
  static constexpr int kTileBytes = kPanels * kKeys * kPanelRowBytes;  ///< of Q, K, V or the result

  // One box shape serves Q, K and V; with the causal mask, only the last tile of keys, the first
  // that is worked on, holds pairs that do not attend, and it holds a key for each query.
  static_assert(kQueries == kKeys);
};

/// How many keys of its last tile, from the first on, half `half` of a block of queries can attend
/// to.
template <int D>
TRIREME_HOST_DEVICE constexpr int keys_of_last_tile(int half, bool causal) {
  return causal ? 64 * (half + 1) : BoxForwardTile<D>::kKeys;
}

/// A block of queries of one head.
struct BoxForwardItem {
  int task;   ///< sample * heads + head
  int block;  ///< kQueries queries
};

/// The order of a forward pass's items: each goes to the block that is first to be free. Heads are
/// worked on in groups whose keys and values stay in the L2 cache, in a group the blocks with the
/// most keys first.
struct BoxForwardSchedule {
  int tasks;
  int blocks;  ///< of queries, per task
  int group;   ///< tasks per group

  TRIREME_HOST_DEVICE constexpr int items() const { return tasks * blocks; }

  TRIREME_HOST_DEVICE constexpr BoxForwardItem item(int index) const {
    const int first = index / (group * blocks) * group;
    const int members = tasks - first < group ? tasks - first : group;
    const int within = index - first * blocks;
    return {first + within % members, blocks - 1 - within / members};
  }
};

/// The schedule for b * heads = `tasks`. A group is what fits a quarter of the L2 cache of an H100.
template <int D>
constexpr BoxForwardSchedule box_forward_schedule(int tasks, int s) {
  constexpr std::int64_t kGroupBytes = 12 << 20;
  const std::int64_t head_bytes = std::int64_t{4} * s * D;
  const std::int64_t group = kGroupBytes / head_bytes;
  return {.tasks = tasks,
          .blocks = tiles_of(s, BoxForwardTile<D>::kQueries),
          .group = static_cast<int>(group < 1       ? 1
                                    : group < tasks ? group
                                                    : tasks)};
}

}  // namespace trireme::kernels::cuda
