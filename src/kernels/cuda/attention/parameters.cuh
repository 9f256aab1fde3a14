// What the attention kernels are given: rows of heads in memory, the documents that tiles of rows
// meet, parameters.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/attention.hpp"
#include "kernels/cuda/attention/dropout.cuh"
#include "kernels/cuda/attention/mma.cuh"
#include "kernels/cuda/attention/tiles.hpp"
#include "kernels/cuda/common/elements.cuh"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/workspace.hpp"
#include "kernels/preconditions.hpp"

namespace trireme::kernels::cuda {

/// The shape of an attention operation and how its memory may be read.
struct AttentionSizes {
  int s, b, heads, kv_heads, d;
  int access_bytes;  ///< 16 or 8: what rows are aligned to; 2 when only to elements
  bool causal;
  const std::int32_t* lengths;  ///< [b], or null

  /// Tokens of the sample of `task` before its padding.
  __device__ int length(int task) const { return lengths ? lengths[task / heads] : s; }

  /// Of q, then of k, then of v.
  TRIREME_HOST_DEVICE int all_heads() const { return heads + 2 * kv_heads; }
  /// Which of all_heads() heads part `part` (0 q, 1 k, 2 v) of query head `head` is: query heads in
  /// groups of heads / kv_heads share a head of k and of v.
  __device__ int head_of(int head, int part) const {
    if (part == 0) return head;
    return heads + (part - 1) * kv_heads + head / (heads / kv_heads);
  }

  /// Elements from position to position.
  __device__ std::int64_t qkv_stride() const { return std::int64_t{b} * all_heads() * d; }
  __device__ std::int64_t out_stride() const { return std::int64_t{b} * heads * d; }
  /// Where part `part` of query head `task` % heads of sample `task` / heads begins.
  __device__ std::int64_t qkv_offset(int task, int part) const {
    return (std::int64_t{task} / heads * all_heads() + head_of(task % heads, part)) * d;
  }
  __device__ std::int64_t out_offset(int task) const { return std::int64_t{task} * d; }
};

/// How kThreads threads share rows of kColumns elements, one unit of kBytes each: a power of two of
/// threads a row, so that a thread stays in its column and steps from row to row.
template <int kBytes, int kThreads, int kColumns>
struct RowShare {
  static constexpr int kSize = kBytes / 2, kUnits = kColumns / kSize;
  static constexpr int kLanes = kUnits <= 4    ? 4
                                : kUnits <= 8  ? 8
                                : kUnits <= 16 ? 16
                                : kUnits <= 32 ? 32
                                               : 64;
  static constexpr int kRowStep = kThreads / kLanes;
  static_assert(kUnits <= kLanes && kLanes <= kThreads);

  int row, column;

  __device__ explicit RowShare(int thread)
      : row(thread / kLanes), column(thread % kLanes * kSize) {}
};

/// load_rows in units of kBytes, to which rows are aligned.
template <int kBytes, int kThreads, int kRows, int kColumns, bool kUnrolled, typename T>
__device__ __forceinline__ void start_copying(T* shared, const T* global, std::int64_t stride,
                                              int rows, int d) {
  static_assert(sizeof(T) == 2);
  using Share = RowShare<kBytes, kThreads, kColumns>;
  static_assert(kRows % Share::kRowStep == 0);
  const Share share(threadIdx.x);
  if (share.column >= kColumns) return;
  const T* from = global + share.row * stride + share.column;
  T* to = shared + share.row * tile_stride(kColumns) + share.column;
#pragma unroll(kUnrolled ? 64 : 1)
  for (int i = 0; i < kRows; i += Share::kRowStep) {
    const bool valid = share.row + i < rows && share.column < d;
    copy_async<kBytes>(to + i * tile_stride(kColumns), valid ? from : global, valid);
    from += Share::kRowStep * stride;
  }
}

/// Starts copying kRows rows of d elements to shared memory [kRows, tile_stride(kColumns)], by all
/// kThreads threads; rows from `rows` on and columns from d to kColumns become zeros.
template <int kThreads, int kRows, int kColumns, typename T>
__device__ __forceinline__ void load_rows(T* shared, const T* global, std::int64_t stride, int rows,
                                          const AttentionSizes& sizes) {
  if (sizes.access_bytes == 16) {
    start_copying<16, kThreads, kRows, kColumns, true>(shared, global, stride, rows, sizes.d);
  } else if (sizes.access_bytes == 8) {
    start_copying<8, kThreads, kRows, kColumns, false>(shared, global, stride, rows, sizes.d);
  } else {
#pragma unroll 1
    for (int i = threadIdx.x; i < kRows * kColumns; i += kThreads) {
      const int row = i / kColumns, column = i % kColumns;
      shared[row * tile_stride(kColumns) + column] =
          row < rows && column < sizes.d ? global[row * stride + column] : from_float<T>(0.0f);
    }
  }
}

/// Writes `rows` rows of d elements from shared memory [kRows, tile_stride(kColumns)], by kThreads
/// threads of which this is `thread`.
template <int kThreads, int kRows, int kColumns, typename T>
__device__ __forceinline__ void store_rows(T* global, const T* shared, std::int64_t stride,
                                           int rows, const AttentionSizes& sizes, int thread) {
  if (sizes.access_bytes == 16) {
    using Share = RowShare<16, kThreads, kColumns>;
    const Share share(thread);
    if (share.column >= sizes.d) return;
    T* to = global + share.row * stride + share.column;
    const T* from = shared + share.row * tile_stride(kColumns) + share.column;
#pragma unroll 4
    for (int i = 0; i < kRows; i += Share::kRowStep) {
      if (share.row + i < rows) store_pack(to, load_pack(from + i * tile_stride(kColumns)));
      to += Share::kRowStep * stride;
    }
  } else {
#pragma unroll 1
    for (int i = thread; i < kRows * kColumns; i += kThreads) {
      const int row = i / kColumns, column = i % kColumns;
      if (row < rows && column < sizes.d)
        global[row * stride + column] = shared[row * tile_stride(kColumns) + column];
    }
  }
}

/// The first keys of the queries of head `task` % heads of sample `task` / heads, of document_start
/// [b, s], or of null, which kernels without documents give, known to the compiler.
__device__ __forceinline__ FirstKeys first_keys_of(const std::int32_t* document_start,
                                                   const AttentionSizes& sizes, int task) {
  const int length = sizes.length(task);
  if (!document_start) return {nullptr, length};
  return {document_start + std::int64_t{task / sizes.heads} * sizes.s, length};
}

/// Where the tiles of kQueries queries end that attend to a key before `key_end`, of those from
/// `first_tile` to `tiles`. By kLanes threads, of which this is `lane`; `count` tells how many of
/// them say yes.
template <int kQueries, int kLanes, typename Count>
__device__ __forceinline__ int query_tiles_end(const FirstKeys& first_keys, int first_tile,
                                               int tiles, int key_end, int lane,
                                               const Count& count) {
  int end = first_tile;
  for (int begin = first_tile; begin < tiles && begin == end; begin += kLanes) {
    const int tile = begin + lane;
    end += count(tile < tiles && first_keys.tile_reaches(tile, kQueries, key_end));
  }
  return end;
}

// ---- parameters

/// AttentionForward as its kernels see it.
template <typename T>
struct AttentionForwardParameters {
  const T* qkv;
  T* out;
  float* lse;
  AttentionSizes sizes;
  float scale;  ///< 1 / sqrt(d)
  AttentionDropout dropout;
  const std::int32_t* document_start;  ///< [b, s], or null
};

/// What the backward pass reads of a row in addition to q and dout.
struct alignas(8) RowStatistics {
  float lse2;   ///< log-sum-exp in base 2
  float delta;  ///< sum of out * dout, which is that of P * dP
};

/// Where the kernels for 16-bit types write dK and dV of each query head, from position to position
/// `stride` elements: to dqkv, or, where query heads share keys and values, to scratch memory [s,
/// b, 2 heads, d], of which sum_groups makes dqkv.
template <typename T>
struct KeyGradients {
  T* data;
  int first_head;  ///< the head that dK of head 0 is, of `all_heads` a sample
  int all_heads;
  std::int64_t stride;

  __device__ T* rows(const AttentionSizes& sizes, int task, int part) const {
    const std::int64_t head = first_head + (part - 1) * sizes.heads + task % sizes.heads;
    return data + (std::int64_t{task} / sizes.heads * all_heads + head) * sizes.d;
  }
};

/// AttentionBackward as its kernels see it.
template <typename T>
struct AttentionBackwardParameters {
  const T* dout;
  const T* qkv;
  T* dqkv;
  KeyGradients<T> key_gradients;
  const RowStatistics* statistics;  ///< [b, heads, s]
  unsigned* ticket;                 ///< how many blocks have begun
  unsigned* turns;                  ///< [b * heads, tiles]: blocks that have added to the tile
  float* partial_dq;                ///< [b * heads, tiles, kQueries * D]
  AttentionSizes sizes;
  float scale;
  AttentionDropout dropout;
  const std::int32_t* document_start;  ///< [b, s], or null
};

/// The sizes of AttentionForward or AttentionBackward, whose operands lie as `aligned` says.
template <typename Args>
AttentionSizes attention_sizes(const Args& args, bool aligned) {
  const std::int64_t kv_heads = args.kv_heads > 0 ? args.kv_heads : args.heads;
  const std::int64_t d = args.qkv.shape[2] / (args.heads + 2 * kv_heads);
  return {.s = static_cast<int>(args.qkv.shape[0]),
          .b = static_cast<int>(args.qkv.shape[1]),
          .heads = static_cast<int>(args.heads),
          .kv_heads = static_cast<int>(kv_heads),
          .d = static_cast<int>(d),
          .access_bytes = !aligned     ? 2
                          : d % 8 == 0 ? 16
                          : d % 4 == 0 ? 8
                                       : 2,
          .causal = args.causal,
          .lengths = args.lengths};
}

inline AttentionDropout attention_dropout(const Dropout& dropout, std::int64_t first_head) {
  const AttentionMask mask{
      .stream = {.seed = dropout.seed, .layer = dropout.layer, .site = dropout.site},
      .threshold = attention_threshold(dropout.probability)};
  return {.mask = mask,
          .first_sample = dropout.first_sample,
          .first_head = first_head,
          .kept = static_cast<float>(attention_kept(mask.threshold)),
          .keys = mask.round_keys()};
}

template <typename T>
AttentionForwardParameters<T> forward_parameters(const AttentionForward& args) {
  const bool aligned = aligned16(args.qkv.data) && aligned16(args.out.data);
  const AttentionSizes sizes = attention_sizes(args, aligned);
  return {.qkv = args.qkv.as<T>(),
          .out = args.out.as<T>(),
          .lse = args.lse.as<float>(),
          .sizes = sizes,
          .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(sizes.d))),
          .dropout = attention_dropout(args.dropout, args.first_head),
          .document_start = args.document_start};
}

/// Takes the scratch memory apart as attention_backward_layout says.
template <typename T>
AttentionBackwardParameters<T> backward_parameters(const AttentionBackward& args,
                                                   const Context& context) {
  const bool aligned =
      aligned16(args.qkv.data) && aligned16(args.dout.data) && aligned16(args.dqkv.data);
  const AttentionSizes sizes = attention_sizes(args, aligned);
  const AttentionBackwardLayout layout = attention_backward_layout(
      args.qkv.dtype, sizes.s, sizes.b, sizes.heads, sizes.d, sizes.kv_heads);
  std::byte* const scratch = context.workspace;
  const bool grouped = sizes.kv_heads < sizes.heads;
  const int gradient_heads = grouped ? 2 * sizes.heads : sizes.all_heads();
  unsigned* const ticket = reinterpret_cast<unsigned*>(scratch + layout.turns);
  return {.dout = args.dout.as<T>(),
          .qkv = args.qkv.as<T>(),
          .dqkv = args.dqkv.as<T>(),
          .key_gradients = {.data = grouped ? reinterpret_cast<T*>(scratch + layout.key_gradients)
                                            : args.dqkv.as<T>(),
                            .first_head = grouped ? 0 : sizes.heads,
                            .all_heads = gradient_heads,
                            .stride = std::int64_t{sizes.b} * gradient_heads * sizes.d},
          .statistics = reinterpret_cast<const RowStatistics*>(scratch + layout.statistics),
          .ticket = ticket,
          .turns = ticket + 1,
          .partial_dq = reinterpret_cast<float*>(scratch + layout.partial_dq),
          .sizes = sizes,
          .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(sizes.d))),
          .dropout = attention_dropout(args.dropout, args.first_head),
          .document_start = args.document_start};
}

}  // namespace trireme::kernels::cuda
