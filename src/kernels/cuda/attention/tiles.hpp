// The tiles of the attention kernels: sizes, which tiles meet, and who holds which element. Pure
// arithmetic, checked on the CPU.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/philox.hpp"
#include "kernels/attention.hpp"

namespace trireme::kernels::cuda {

/// Head dimensions that kernels are compiled for, ascending.
template <int... kSizes>
struct HeadSizes {};

/// Those of the kernels for every GPU. Columns beyond a head's own are zeros in shared memory.
using TileHeads = HeadSizes<32, 64, 80, 96, 112, 128, kMaxHead>;

/// Calls function(integral_constant D) with the least D of the sizes that is at least `d`, if any.
template <int... kSizes, typename Function>
constexpr void dispatch_head(HeadSizes<kSizes...>, std::int64_t d, const Function& function) {
  static_cast<void>(
      ((d <= kSizes && (function(std::integral_constant<int, kSizes>()), true)) || ...));
}

/// That D for the kernels for every GPU.
constexpr int padded_head(std::int64_t d) {
  int padded = kMaxHead;
  dispatch_head(TileHeads(), d, [&](auto size) { padded = decltype(size)::value; });
  return padded;
}

/// Elements from one row of a tile in shared memory to the next. An odd number of 16-byte units:
/// eight rows of one column lie in eight different groups of banks.
constexpr int tile_stride(int columns) { return columns + 8; }

/// The forward pass for heads padded to D: a block owns kQueries queries, each warp 16 * kRowTiles
/// of them, and walks over tiles of kKeys keys, kStages of which are in shared memory.
/// A warp with 32 rows uses each fragment of K and V twice: with 16, reading shared memory would
/// take longer than the GEMMs.
template <int D>
struct ForwardTile {
  static constexpr int kWarps = 4;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kRowTiles = D <= 128 ? 2 : 1;
  static constexpr int kWarpQueries = 16 * kRowTiles;
  static constexpr int kQueries = kWarps * kWarpQueries;
  static constexpr int kKeys = 64;
  static constexpr int kStages = D <= 96 ? 2 : 1;
  static constexpr bool kQueriesInRegisters = D <= 64;
  static constexpr int kStride = tile_stride(D);
  static constexpr int kSharedBytes = 2 * (kQueries + 2 * kStages * kKeys) * kStride;
  static_assert(D % 16 == 0 && kSharedBytes <= 99 << 10, "has to fit compute capability 8.6");
};

/// The backward pass for heads padded to D: a block owns kKeys keys and walks over tiles of
/// kQueries queries. A warp owns 16 * kKeyTiles keys; kSplit warps share them, each with its part
/// of the columns of dK and dV. The queries of a tile are worked on kPart at a time. The GEMMs
/// for dQ are spread over kQueryWarps x kColumnWarps warps. kCompact: for 99 KB of shared memory.
template <int D, bool kCompact = false>
struct BackwardTile {
  static constexpr int kKeyTiles = D <= 64 ? 2 : 1;
  static constexpr int kSplit = D <= 128 ? 1 : 2;
  static constexpr int kWarps = D <= 64 || kCompact ? 4 : 8;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kBlocksPerSm = kThreads <= 128 ? 2 : 1;
  static constexpr int kWarpKeys = 16 * kKeyTiles;
  static constexpr int kKeys = kWarps / kSplit * kWarpKeys;
  static constexpr int kQueries = D <= 128 ? 64 : 32;
  static constexpr int kPart = kKeyTiles == 2 ? 32 : kQueries;
  static constexpr int kStages = kCompact ? 1 : 2;
  static constexpr int kColumnWarps = D > 128 ? kWarps : (kWarps == 8 && D / 8 % 4 == 0 ? 4 : 2);
  static constexpr int kQueryWarps = kWarps / kColumnWarps;
  static constexpr int kStride = tile_stride(D);
  static constexpr int kScoreStride = tile_stride(kQueries);
  static constexpr int kSharedBytes = 2 * (2 * kKeys + 2 * kStages * kQueries) * kStride +
                                      2 * kKeys * kScoreStride + 8 * kStages * kQueries + 16;
  static_assert(kKeys % kQueries == 0, "a block's first tile begins with its first key");
  static_assert(D / 8 % kColumnWarps == 0 && kQueries / 16 % kQueryWarps == 0);
  static_assert(kSharedBytes <= ((kCompact || D <= 64) ? 99 : 163) << 10);
};

/// Number of tiles of `size` that cover `count`.
TRIREME_HOST_DEVICE constexpr int tiles_of(int count, int size) {
  return (count + size - 1) / size;
}

/// The keys that queries before `query_end` attend to are those before this one.
TRIREME_HOST_DEVICE constexpr int keys_end(int s, int query_end, bool causal) {
  return causal && query_end < s ? query_end : s;
}

/// Whether no query of [query_begin, query_begin + queries) attends to a key from `key_begin` on.
TRIREME_HOST_DEVICE constexpr bool all_masked(int query_begin, int queries, int key_begin, int s,
                                              bool causal) {
  return key_begin >= s || (causal && key_begin > query_begin + queries - 1);
}

/// Whether some query from `query_begin` on does not attend to all keys of [key_begin, key_begin +
/// keys).
TRIREME_HOST_DEVICE constexpr bool needs_mask(int query_begin, int key_begin, int keys, int s,
                                              bool causal) {
  return key_begin + keys > s || (causal && key_begin + keys - 1 > query_begin);
}

/// Whether `query` attends to `key`.
TRIREME_HOST_DEVICE constexpr bool attends(int query, int key, int s, bool causal) {
  return key < s && (!causal || key <= query);
}

/// The first tile of `queries` queries that attends to the block of keys that begins at
/// `key_begin`.
TRIREME_HOST_DEVICE constexpr int first_query_tile(int key_begin, int queries, bool causal) {
  return causal ? key_begin / queries : 0;
}

/// How many blocks of `keys` keys add to dQ of tile `tile` before block `block`: they come in
/// descending order. With the mask, block j begins at the diagonal and reaches a tile one diagonal
/// step after block j + 1 does, so that blocks that run side by side hardly wait for each other.
TRIREME_HOST_DEVICE constexpr int turn_of(int tile, int block, int queries, int keys, int s,
                                          bool causal) {
  return (keys_end(s, (tile + 1) * queries, causal) - 1) / keys - block;
}

/// Where a thread's elements of a 16 x 8 accumulator lie: element e of lane `lane` is in row
/// fragment_row(lane) + 8 * (e / 2), column fragment_column(lane) + e % 2.
TRIREME_HOST_DEVICE constexpr int fragment_row(int lane) { return lane / 4; }
TRIREME_HOST_DEVICE constexpr int fragment_column(int lane) { return lane % 4 * 2; }

/// Eight consecutive keys of one query, what one draw of random words decides, in a 16 x 8 tile
/// with queries as rows: which row, of every second tile from `tile` on.
struct KeyOctet {
  int query;
  int tile;
};

/// Dropout of such tiles: the four lanes of a row draw the octets of two rows and two tiles. The
/// decision of element e of tile n is bit `forward_bit(lane, e)` of what lane `forward_source(lane,
/// e, n % 2)` drew for it.
TRIREME_HOST_DEVICE constexpr KeyOctet forward_octet(int lane) {
  return {fragment_row(lane) + 8 * (lane % 2), lane % 4 / 2};
}
TRIREME_HOST_DEVICE constexpr int forward_source(int lane, int e, int tile) {
  return lane / 4 * 4 + e / 2 + 2 * tile;
}
TRIREME_HOST_DEVICE constexpr int forward_bit(int lane, int e) {
  return fragment_column(lane) + e % 2;
}

/// The same with keys as rows: the eight keys from row `key` on of column `query`.
struct QueryOctet {
  int query;
  int key;
  int tile;
};

/// The eight lanes of a pair of columns draw the octets of two columns, two halves and two tiles.
/// The decision of element e of tile n is bit `backward_bit(lane)` of what lane
/// `backward_source(lane, e, n % 2)` drew for it.
TRIREME_HOST_DEVICE constexpr QueryOctet backward_octet(int lane) {
  const int rank = lane / 4;
  return {fragment_column(lane) + rank % 2, rank % 4 / 2 * 8, rank / 4};
}
TRIREME_HOST_DEVICE constexpr int backward_source(int lane, int e, int tile) {
  return lane % 4 + 4 * (e + 4 * tile);
}
TRIREME_HOST_DEVICE constexpr int backward_bit(int lane) { return fragment_row(lane); }

// ---- the documents of a sample, as the tiles of the attention kernels meet them: a query attends
// to no key before its document's first. Documents lie one behind the other, so that the tiles that
// meet are a range: of keys, for a block of queries, and of queries, for a block of keys

/// The first key that each query of a sample attends to: where its document begins, or 0 where
/// `starts` is null; a null that the compiler knows costs nothing. Queries behind the sequence
/// count as its last one.
struct FirstKeys {
  const std::int32_t* starts;  ///< [s], not decreasing, starts[query] <= query
  int s;

  TRIREME_HOST_DEVICE constexpr int operator()(int query) const {
    return starts ? starts[query < s ? query : s - 1] : 0;
  }

  /// Whether no query from `query_begin` on attends to a key before `key_end`.
  TRIREME_HOST_DEVICE constexpr bool all_behind(int query_begin, int key_end) const {
    return starts && (*this)(query_begin) >= key_end;
  }
  /// Whether some query before `query_end` does not attend to all keys from `key_begin` on.
  TRIREME_HOST_DEVICE constexpr bool cut(int query_end, int key_begin) const {
    return starts && (*this)(query_end - 1) > key_begin;
  }
  /// Whether `key` is before all that `query` attends to.
  TRIREME_HOST_DEVICE constexpr bool hide(int query, int key) const {
    return starts && key < (*this)(query);
  }

  /// The first tile of `keys` keys that a query from `query_begin` on attends to.
  TRIREME_HOST_DEVICE constexpr int first_key_tile(int query_begin, int keys) const {
    return (*this)(query_begin) / keys;
  }
  /// Whether tile `tile` of `queries` queries attends to a key before `key_end`. Where one does
  /// not, none behind it does.
  TRIREME_HOST_DEVICE constexpr bool tile_reaches(int tile, int queries, int key_end) const {
    return !all_behind(tile * queries, key_end);
  }
};

}  // namespace trireme::kernels::cuda
