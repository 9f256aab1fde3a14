// Attention of a decoded row to the keys of a paged cache: how a warp reads them, sums of
// parts, and what kernels are told.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/common/elements.cuh"
#include "kernels/cuda/common/math.cuh"
#include "kernels/decoding.hpp"

namespace trireme::kernels::cuda {

/// The keys of a row are shared among the kWarps warps of a block or, for few rows, of the kParts
/// blocks of a cluster.
inline constexpr int kWarps = 4;
inline constexpr int kThreads = 32 * kWarps;
inline constexpr int kParts = 8;
inline constexpr int kElements = 8;  // of a row of keys or values, by one lane
inline constexpr int kMaxGroup = 8;  // query heads of one block

template <typename T>
struct CacheParameters {
  const T* qkv;
  T* keys;
  T* values;
  T* out;
  const std::int32_t* table;
  const std::int32_t* lines;
  const std::int32_t* row_positions;
  std::int64_t stride, columns;
  int heads, kv_heads, d, positions, shift;
  float scale;
  bool append;
  int window;  // 0: none

  /// Where a position of one head lies in keys and values; `line` is the sequence's line of table.
  __device__ std::int64_t place(const std::int32_t* line, int position, int head) const {
    const int column = shift >= 0 ? position >> shift : position / positions;
    return line[column] * stride +
           (std::int64_t{head} * positions + (position - column * positions)) * d;
  }
  __device__ const T* row(int t) const {
    return qkv + std::int64_t{t} * (heads + 2 * kv_heads) * d;
  }
};

/// kElements elements of a row: as they are stored where 16 bytes are read at a time.
template <typename T, bool kVectors>
using RowPart = std::conditional_t<kVectors, Elements<T, kElements>, Values<kElements>>;

/// The elements at `pointer`, of which `count` are there.
template <typename T, bool kVectors>
__device__ __forceinline__ RowPart<T, kVectors> load_part(const T* pointer, int count) {
  RowPart<T, kVectors> part = {};
  if constexpr (kVectors) {
    if (count > 0) part = load<kElements>(pointer);
  } else {
#pragma unroll
    for (int c = 0; c < kElements; ++c)
      if (c < count) part[c] = to_float(pointer[c]);
  }
  return part;
}
template <typename T, bool kVectors>
__device__ __forceinline__ Values<kElements> values_of(const RowPart<T, kVectors>& part) {
  if constexpr (kVectors)
    return widen<T, kElements>(part);
  else
    return part;
}

/// The softmax over some keys, of kHeads query heads: the largest score, and sums relative to it.
template <int kHeads>
struct Softmax {
  float largest[kHeads], total[kHeads];
  Values<kElements> sum[kHeads];
};

/// Adds the sums of other keys.
template <int kHeads>
__device__ __forceinline__ void merge(Softmax<kHeads>& s, int g, float largest, float total,
                                      const Values<kElements>& sum) {
  const float most = fmaxf(s.largest[g], largest);
  // Both may be empty.
  const float mine = s.total[g] > 0.0f ? expf(s.largest[g] - most) : 0.0f;
  const float theirs = total > 0.0f ? expf(largest - most) : 0.0f;
  s.largest[g] = most;
  s.total[g] = s.total[g] * mine + total * theirs;
#pragma unroll
  for (int c = 0; c < kElements; ++c) s.sum[g][c] = s.sum[g][c] * mine + sum[c] * theirs;
}

/// What some keys give for kHeads query heads.
template <int kHeads, int kColumns>
struct PartSums {
  float largest[kHeads], total[kHeads], sum[kHeads][kColumns];
};

/// One element of it.
struct PartSum {
  float largest, total, sum;
};
template <int kHeads, int kColumns>
__device__ __forceinline__ PartSum sum_at(const PartSums<kHeads, kColumns>* sums, int g, int c) {
  return {sums->largest[g], sums->total[g], sums->sum[g][c]};
}

/// The sum of kCount parts, in their order.
template <int kCount>
__device__ __forceinline__ PartSum combine(const PartSum (&parts)[kCount]) {
  PartSum all{-INFINITY, 0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < kCount; ++i) all.largest = fmaxf(all.largest, parts[i].largest);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float factor = parts[i].total > 0.0f ? expf(parts[i].largest - all.largest) : 0.0f;
    all.total += parts[i].total * factor;
    all.sum += parts[i].sum * factor;
  }
  return all;
}
template <int kHeads, int kColumns>
__device__ __forceinline__ PartSum combine_warps(const PartSums<kHeads, kColumns> (&warps)[kWarps],
                                                 int g, int c) {
  PartSum parts[kWarps];
#pragma unroll
  for (int w = 0; w < kWarps; ++w) parts[w] = sum_at(&warps[w], g, c);
  return combine(parts);
}

/// The keys that a row of the batch attends to, and how a warp reads those of one head: kLanes
/// lanes share a key, 32 / kLanes keys are read together, kUnroll times. The warps of kBlocks
/// blocks share the keys.
template <typename T, int kLanes, int kHeads, bool kVectors, int kBlocks>
struct KeyReader {
  static constexpr int kKeys = 32 / kLanes;
  static constexpr int kUnroll = kHeads == 1 ? 4 : 2;
  static constexpr int kStep = kKeys * kUnroll;             // keys of a warp's step
  static constexpr int kStride = kBlocks * kWarps * kStep;  // from a warp's step to its next
  struct Step {
    RowPart<T, kVectors> keys[kUnroll], values[kUnroll];
  };

  const CacheParameters<T>& p;
  const std::int32_t* blocks;  // of the sequence
  int kv, begin, end;

  __device__ int column() const { return static_cast<int>(threadIdx.x) % kLanes * kElements; }
  __device__ int key_of(int first, int u) const {
    return first + u * kKeys + static_cast<int>(threadIdx.x) % 32 / kLanes;
  }
  __device__ int first_of(int block) const {
    return begin + (block * kWarps + static_cast<int>(threadIdx.x) / 32) * kStep;
  }
  /// Reads the keys before `limit` from the cache.
  __device__ __forceinline__ void read(int first, int limit, Step& step) const {
    const int there = p.d - column();
    if (p.shift >= 0 && first + kStep <= limit &&
        (first & (p.positions - 1)) + kStep <= p.positions) {  // all in one block of the cache
      const std::int64_t place = p.place(blocks, key_of(first, 0), kv) + column();
      const T *keys = p.keys + place, *values = p.values + place;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        step.keys[u] = load_part<T, kVectors>(keys + u * kKeys * p.d, there);
        step.values[u] = load_part<T, kVectors>(values + u * kKeys * p.d, there);
      }
      return;
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int key = key_of(first, u);
      step.keys[u] = step.values[u] = {};
      if (key >= limit) continue;
      const std::int64_t place = p.place(blocks, key, kv) + column();
      step.keys[u] = load_part<T, kVectors>(p.keys + place, there);
      step.values[u] = load_part<T, kVectors>(p.values + place, there);
    }
  }
  /// Takes the last key, and its value, from `key` and `value` [d], where the step has it.
  __device__ __forceinline__ void read_new(int first, const T* key, const T* value,
                                           Step& step) const {
    if (first + kStep < end) return;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (key_of(first, u) != end - 1) continue;
      step.keys[u] = load_part<T, kVectors>(key + column(), p.d - column());
      step.values[u] = load_part<T, kVectors>(value + column(), p.d - column());
    }
  }
  /// Adds the keys of a step to the softmax.
  __device__ __forceinline__ void add(int first, const Step& step,
                                      const Values<kElements> (&query)[kHeads],
                                      Softmax<kHeads>& state) const {
    float scores[kHeads][kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const Values<kElements> key = values_of<T, kVectors>(step.keys[u]);
      const bool seen = key_of(first, u) < end;
#pragma unroll
      for (int g = 0; g < kHeads; ++g) {
        float score = 0.0f;
#pragma unroll
        for (int c = 0; c < kElements; ++c) score = fmaf(query[g][c], key[c], score);
#pragma unroll
        for (int distance = kLanes / 2; distance > 0; distance /= 2)
          score += __shfl_xor_sync(~0u, score, distance);
        scores[g][u] = seen ? score : -INFINITY;
      }
    }
#pragma unroll
    for (int g = 0; g < kHeads; ++g) {
      float most = state.largest[g];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) most = fmaxf(most, scores[g][u]);
      const float before = state.largest[g];
      state.largest[g] = most;  // -infinity where all keys are past the end
      if (most == -INFINITY) most = 0.0f;
      const float correction = expf(before - most);
      state.total[g] *= correction;
#pragma unroll
      for (int c = 0; c < kElements; ++c) state.sum[g][c] *= correction;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        scores[g][u] = expf(scores[g][u] - most);
        state.total[g] += scores[g][u];
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const Values<kElements> value = values_of<T, kVectors>(step.values[u]);
#pragma unroll
      for (int g = 0; g < kHeads; ++g)
#pragma unroll
        for (int c = 0; c < kElements; ++c)
          state.sum[g][c] = fmaf(scores[g][u], value[c], state.sum[g][c]);
    }
  }
};

/// Sums the lanes' states, of different keys, and writes what the warp's keys give.
template <int kLanes, int kHeads>
__device__ __forceinline__ void write_warp(Softmax<kHeads>& state,
                                           PartSums<kHeads, kLanes * kElements>& to) {
  const int lane = threadIdx.x % 32, column = lane % kLanes * kElements;
#pragma unroll
  for (int g = 0; g < kHeads; ++g) {
#pragma unroll
    for (int distance = 16; distance >= kLanes; distance /= 2) {
      Values<kElements> sum;
      const float largest = __shfl_xor_sync(~0u, state.largest[g], distance);
      const float total = __shfl_xor_sync(~0u, state.total[g], distance);
#pragma unroll
      for (int c = 0; c < kElements; ++c) sum[c] = __shfl_xor_sync(~0u, state.sum[g][c], distance);
      merge(state, g, largest, total, sum);
    }
    if (lane < kLanes) {
#pragma unroll
      for (int c = 0; c < kElements; ++c) to.sum[g][column + c] = state.sum[g][c];
    }
    if (lane == 0) {
      to.largest[g] = state.largest[g];
      to.total[g] = state.total[g];
    }
  }
}

// ---- what kernels are told, from the arguments of operations

template <typename T>
CacheParameters<T> cache_parameters(const Tensor& qkv, const KeyValueCache& cache,
                                    const CacheRows& rows, const CacheSizes& sizes) {
  int shift = -1;
  for (int i = 0; i < 31; ++i)
    if (std::int64_t{1} << i == sizes.positions) shift = i;
  return {.qkv = qkv.as<T>(),
          .keys = cache.keys.as<T>(),
          .values = cache.values.as<T>(),
          .out = nullptr,
          .table = cache.table,
          .lines = rows.lines,
          .row_positions = rows.positions,
          .stride = cache.stride,
          .columns = cache.columns,
          .heads = static_cast<int>(sizes.heads),
          .kv_heads = static_cast<int>(sizes.kv_heads),
          .d = static_cast<int>(sizes.head_dim),
          .positions = static_cast<int>(sizes.positions),
          .shift = shift,
          .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(sizes.head_dim))),
          .append = false,
          .window = 0};
}

template <typename T>
CacheParameters<T> cache_parameters(const AttentionPaged& args, const CacheSizes& sizes) {
  CacheParameters<T> p = cache_parameters<T>(args.qkv, args.cache, args.rows, sizes);
  p.out = args.out.as<T>();
  p.append = args.append;
  p.window = static_cast<int>(std::min<std::int64_t>(args.window, INT32_MAX));
  return p;
}

}  // namespace trireme::kernels::cuda
