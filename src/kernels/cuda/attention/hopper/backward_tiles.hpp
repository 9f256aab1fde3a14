// The tiles of the backward pass on Hopper: sizes, shared memory, and the order of the work. Pure
// arithmetic, checked on the CPU.
#pragma once

#include "kernels/cuda/attention/tiles.hpp"
#include "kernels/cuda/hopper/layouts.hpp"

namespace trireme::kernels::cuda {

/// What the backward pass pads heads to: those between the two are faster so than without these
/// kernels.
using BoxBackwardHeads = HeadSizes<64, 128>;

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
  /// Columns of dQ that a warpgroup works out: all, of its half of the queries, or half, of all.
  static constexpr int kGradientColumns = D / kWarpgroups * (kQueries / 64);
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

  static_assert(D % kPanelColumns == 0, "heads are whole panels");
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
