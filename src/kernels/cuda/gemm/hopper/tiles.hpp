// The tiles that the GEMM algorithms for Hopper compute, and which cluster computes which of them.
// Pure arithmetic, checked on the CPU.
#pragma once

#include <cstdint>

#include "kernels/cuda/hopper/layouts.hpp"

namespace trireme::kernels::cuda {

/// What a kernel does with a tile of op(A) op(B).
enum class TileEpilogue {
  store,          ///< C = tile + bias, in the operands' type
  gelu,           ///< aux = tile + bias, C = gelu(aux)
  gelu_gradient,  ///< C = tile * gelu'(aux), and its column sums
  exact_gelu,     ///< as the two before, with the exact GELU
  exact_gelu_gradient,
  gated,           ///< C = tile, aux = silu(gate) * up of C = (gate, up)
  gated_gradient,  ///< C = (tile * up * silu'(gate), tile * silu(gate)) of aux = (gate, up)
  accumulate,      ///< C += tile, in fp32, where several clusters may have parts of the sum over k
  accumulate_row_sums,  ///< the same, and the sums of op(A) over k are added to a vector
};

constexpr bool accumulates(TileEpilogue epilogue) {
  return epilogue == TileEpilogue::accumulate || epilogue == TileEpilogue::accumulate_row_sums;
}

constexpr bool is_gelu(TileEpilogue epilogue) {
  return epilogue == TileEpilogue::gelu || epilogue == TileEpilogue::exact_gelu;
}
constexpr bool is_gelu_gradient(TileEpilogue epilogue) {
  return epilogue == TileEpilogue::gelu_gradient || epilogue == TileEpilogue::exact_gelu_gradient;
}

constexpr bool reads_aux(TileEpilogue epilogue) {
  return is_gelu_gradient(epilogue) || epilogue == TileEpilogue::gated_gradient;
}

/// Whether operands are stored with k as rows: x [m, k] and w [n, k] of a linear layer's forward
/// pass are not, w [k, n] of its input gradient is, and so are both of its weight gradient.
struct GemmOperands {
  bool transposed_a, transposed_b;
};
constexpr GemmOperands operands_of(TileEpilogue epilogue) {
  return {accumulates(epilogue), accumulates(epilogue) || reads_aux(epilogue)};
}

/// The work of a thread block: a warpgroup that copies operands, two that multiply. Each consumer
/// warpgroup has a tile of its own, 64 * kBlocks rows and kColumns columns of fp32 accumulators in
/// registers: while one multiplies, the other runs its epilogue. kCluster blocks have tiles under
/// each other and share the loads of B. For `gated`, half of a tile's columns are gate's, the
/// others the same ones of up.
template <int kBlocks_, int kColumns_, int kCluster_, TileEpilogue kEpilogue_>
struct GemmTile {
  static constexpr int kBlocks = kBlocks_, kColumns = kColumns_, kCluster = kCluster_;
  static constexpr TileEpilogue kEpilogue = kEpilogue_;
  static constexpr bool kTransposedA = operands_of(kEpilogue).transposed_a;
  static constexpr bool kTransposedB = operands_of(kEpilogue).transposed_b;

  static constexpr int kConsumers = 2;
  static constexpr int kThreads = 128 * (1 + kConsumers);
  static constexpr int kRows = 64 * kBlocks;
  static constexpr int kDepth = kPanelColumns;  ///< of a step along k: one panel

  // ---- shared memory: a ring of stages, and staging buffers of 64 x 64 elements for the epilogue
  static constexpr int kBytesA = kRows * kPanelRowBytes, kBytesB = kColumns * kPanelRowBytes;
  static constexpr int kStageBytes = kBytesA + kBytesB;
  static constexpr int kBufferBytes = 64 * kPanelRowBytes;
  static constexpr int kBuffers = accumulates(kEpilogue) ? 0 : 4;  ///< of a consumer
  /// Those that a part of the tile of 64 x 64 elements takes together.
  static constexpr int kTogether = is_gelu(kEpilogue) || kEpilogue == TileEpilogue::gated ||
                                           kEpilogue == TileEpilogue::gated_gradient
                                       ? 2
                                       : 1;
  static constexpr int kSets = kBuffers / kTogether;
  static constexpr int kPanels = kColumns / kPanelColumns;
  static constexpr int kSumBytes = is_gelu_gradient(kEpilogue) ? 2 * 4 * 64 * 4 : 0;
  static constexpr int kOnesBytes = kEpilogue == TileEpilogue::accumulate_row_sums ? 1024 : 0;
  static constexpr int kBarrierBytes = 512;
  static constexpr int kOtherBytes =
      kConsumers * kBuffers * kBufferBytes + kSumBytes + kOnesBytes + kBarrierBytes;
  static constexpr int kSharedBytes = 227 << 10;
  static constexpr int kStages = (kSharedBytes - kOtherBytes) / kStageBytes;
  static constexpr int kBytes = kOtherBytes + kStages * kStageBytes;

  static_assert(kColumns % kPanelColumns == 0 && kStages >= 3);
  static_assert(kRows <= 256 && kColumns <= 256, "an extent of a box");
  static_assert(kEpilogue != TileEpilogue::gated || kCluster == 2, "each loads one half of B");
};

/// One tile of one cluster, or the part of it that some steps along k contribute.
struct GemmUnit {
  int row;     ///< in clusters' tiles
  int column;  ///< in tiles
  int first_step, end_step;
  int split;
};

/// The order in which clusters take units, each when it gets free. Tiles are walked in groups of
/// `group` rows, column after column, so that those in flight share operands in L2. All tiles of a
/// part of k come before those of the next part.
struct GemmSchedule {
  int rows, columns;  ///< clusters' tiles along m, tiles along n
  int group;
  int splits;         ///< parts of k
  int steps;          ///< along k
  int first_row = 0;  ///< where the walk begins, which goes round

  TRIREME_HOST_DEVICE constexpr int tiles() const { return rows * columns; }
  TRIREME_HOST_DEVICE constexpr int units() const { return tiles() * splits; }

  /// The clusters' first units that are theirs by index, without drawing a ticket: none where a
  /// unit waits for one before it, whose cluster might not be resident yet.
  TRIREME_HOST_DEVICE constexpr int given_units(int clusters) const {
    return splits == 1 ? clusters : 0;
  }
  /// The tickets that `clusters` clusters draw, until each has got one beyond the last unit.
  TRIREME_HOST_DEVICE constexpr int tickets(int clusters) const {
    return units() + clusters - given_units(clusters);
  }

  TRIREME_HOST_DEVICE constexpr GemmUnit unit(int index) const {
    const int split = splits == 1 ? 0 : index / tiles();
    const int tile = index - split * tiles();
    const int first = tile / (group * columns) * group;
    const int members = rows - first < group ? rows - first : group;
    const int within = tile - first * columns;
    const int row = first + within % members + first_row;
    return {.row = row < rows ? row : row - rows,
            .column = within / members,
            .first_step = begin_of(split),
            .end_step = begin_of(split + 1),
            .split = split};
  }
  TRIREME_HOST_DEVICE constexpr int begin_of(int split) const {
    return static_cast<int>(static_cast<unsigned>(steps) * static_cast<unsigned>(split) /
                            static_cast<unsigned>(splits));
  }
};

/// What an epilogue that is not overlapped takes, in steps along k.
inline constexpr int kEpilogueSteps = 4;
/// Parts of k at most, and steps of a part at least.
inline constexpr int kMaxSplits = 64, kMinSplitSteps = 8;

/// The number of parts of k with which `clusters` clusters are the soonest done with `tiles` tiles
/// of `steps` steps; the smallest of those that are as good.
constexpr int best_splits(int tiles, int steps, int clusters) {
  int best = 1;
  std::int64_t best_cost = 0;
  for (int splits = 1; splits <= kMaxSplits && splits * kMinSplitSteps <= steps; ++splits) {
    const std::int64_t waves = (std::int64_t{tiles} * splits + clusters - 1) / clusters;
    const std::int64_t cost = waves * ((steps + splits - 1) / splits + kEpilogueSteps);
    if (splits > 1 && cost * 200 >= best_cost * 199) continue;
    best = splits;
    best_cost = cost;
  }
  return best;
}

/// Rows of clusters' tiles in a group: with 132 SMs about as many as columns in flight.
inline constexpr int kGroupRows = 8;

/// Whether C's rows can be had in `parts` equal parts of whole clusters' tiles.
template <typename Tile>
constexpr bool has_row_parts(std::int64_t m, int parts) {
  return m % (std::int64_t{parts} * Tile::kCluster * Tile::kRows) == 0;
}

/// `schedule` with its walk beginning at part `first` of `parts` of the rows, and no group of rows
/// in two parts.
constexpr GemmSchedule in_row_parts(GemmSchedule schedule, int parts, int first) {
  const int part_rows = schedule.rows / parts;
  schedule.first_row = part_rows * first;
  while (part_rows % schedule.group != 0) --schedule.group;
  return schedule;
}

/// The schedule for C [m, n] of k terms on `clusters` clusters.
template <typename Tile>
constexpr GemmSchedule gemm_schedule(std::int64_t m, std::int64_t n, std::int64_t k, int clusters) {
  const auto parts = [](std::int64_t size, int part) {
    return static_cast<int>((size + part - 1) / part);
  };
  GemmSchedule schedule{.rows = parts(m, Tile::kCluster * Tile::kRows),
                        .columns = parts(n, Tile::kColumns),
                        .group = kGroupRows,
                        .splits = 1,
                        .steps = parts(k, Tile::kDepth)};
  if (accumulates(Tile::kEpilogue))
    schedule.splits = best_splits(schedule.tiles(), schedule.steps, clusters);
  return schedule;
}

}  // namespace trireme::kernels::cuda
