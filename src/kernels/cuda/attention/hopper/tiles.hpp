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
  static constexpr bool kRaisesAmax = D < 128;  ///< registers would not suffice for both

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

// ---- the backward pass: sizes, shared memory, and the order of the work

/// What the backward pass pads heads to.
using BoxBackwardHeads = HeadSizes<64, 80, 96, 128>;

/// Heads of D: a block of threads takes one block of kKeys keys after the other, each of its
/// kWarpgroups warpgroups that multiply owns 64 of them, and walks over tiles of kQueries queries.
/// One more warpgroup copies and waits for other blocks. Offsets are in bytes of shared memory.
template <int D>
struct BoxBackwardTile {
  static constexpr int kWarpgroups = 2;
  static constexpr int kThreads = 128 * (kWarpgroups + 1);
  static constexpr int kConsumers = 128 * kWarpgroups;
  static constexpr int kKeys = 64 * kWarpgroups;
  static constexpr int kQueries = D <= 64 ? 128 : 64;
  static constexpr int kPanels = panels_of(D);
  /// Columns of partial sums of dQ: whole panels, of which those from D on are not used.
  static constexpr int kPartialColumns = kPanels * kPanelColumns;
  /// Those that a warpgroup works out: all, of its half of the queries, or half, of all.
  static constexpr int kGradientColumns = kPartialColumns / kWarpgroups * (kQueries / 64);
  static constexpr int kStages = 2;
  /// Whether scores of the next tile are multiplied while dQ of this one is written.
  static constexpr bool kAhead = D <= 64;
  /// Registers a thread, of the 65536 of a processor.
  static constexpr int kMultiplyRegisters = D <= 64 ? 232 : 240;
  static constexpr int kCopyRegisters = D <= 64 ? 40 : 24;

  static constexpr int kBoxBytes = 64 * kPanelRowBytes;
  static constexpr int kKeyBytes = kKeys / 64 * kPanels * kBoxBytes;
  static constexpr int kQueryBytes = kQueries / 64 * kPanels * kBoxBytes;
  static constexpr int kScoreBytes = kKeys / 64 * panels_of(kQueries) * kBoxBytes;

  static constexpr int kKeysAt = 0;
  static constexpr int kValuesAt = kKeysAt + kStages * kKeyBytes;
  static constexpr int kQueriesAt = kValuesAt + kStages * kKeyBytes;
  static constexpr int kDoutsAt = kQueriesAt + kStages * kQueryBytes;
  static constexpr int kScoresAt = kDoutsAt + kStages * kQueryBytes;
  static constexpr int kStatisticsAt = kScoresAt + kStages * kScoreBytes;
  static constexpr int kFirstKeysAt = kStatisticsAt + 8 * kStages * kQueries;
  static constexpr int kBarriersAt = kFirstKeysAt + 4 * kStages * kQueries;
  static constexpr int kBarriers = 18;  ///< of 8 bytes: BoxBackwardMemory
  static constexpr int kTicketsAt = kBarriersAt + 8 * kBarriers;
  static constexpr int kSharedBytes = kBarriersAt + 256;

  static_assert(D % 16 == 0, "steps of a GEMM");
  static_assert(kGradientColumns == 64, "a warpgroup's part of dQ is 64 x 64");
  static_assert(kQueries <= kKeys && kKeys % kQueries == 0, "a block begins with its first key");
  static_assert(kTicketsAt + 8 * kStages <= kSharedBytes, "tickets and ends of tiles");
  static_assert(kSharedBytes <= 227 << 10);
};

/// Heads whose blocks are handed out together.
inline constexpr int kTasksPerGroup = 8;

/// A block of keys of one head of one sample.
struct KeyBlock {
  int task;
  int block;
};

/// What the block of threads that draws `ticket` works on: the last blocks of keys of a group of
/// heads, then those before them. A block waits for later blocks of its head only, which have been
/// drawn before; the other heads of the group come between, so that it hardly waits.
TRIREME_HOST_DEVICE constexpr KeyBlock key_block(int ticket, int tasks, int blocks) {
  const int group = ticket / (kTasksPerGroup * blocks);
  const int first = group * kTasksPerGroup, left = tasks - first;
  const int members = left < kTasksPerGroup ? left : kTasksPerGroup;
  const int rank = ticket - first * blocks;
  return {first + rank % members, blocks - 1 - rank / members};
}

}  // namespace trireme::kernels::cuda
