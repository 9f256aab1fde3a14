#include <cooperative_groups.h>

#include <algorithm>
#include <cmath>

#include "kernels/attention.hpp"
#include "kernels/cuda/common/elements.cuh"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/decoding/launch.cuh"
#include "kernels/decoding.hpp"

// d head dimension, G query heads that share a head of keys and values.
namespace trireme::kernels::cuda {
namespace {

namespace cg = cooperative_groups;

// The keys of a row are shared among kParts parts of kWarps warps each: for few rows the blocks of
// a cluster, else one block computes the parts in turn. The sums have the same order in both cases.
constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kParts = 8;
constexpr int kElements = 8;  // of a row of keys or values, by one lane
constexpr int kMaxGroup = 8;  // query heads of one block

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

// A block copies the keys and values of a row. Bound by bytes, of which there are few.
template <typename T>
__global__ void append_rows(const CacheParameters<T> p) {
  wait_for_previous();
  const int t = static_cast<int>(blockIdx.x);
  const std::int32_t line = p.lines[t];
  if (line < 0) return;
  const T* keys = p.row(t) + std::int64_t{p.heads} * p.d;
  for (int i = threadIdx.x; i < p.kv_heads * p.d; i += blockDim.x) {
    const std::int64_t place =
        p.place(p.table + line * p.columns, p.row_positions[t], i / p.d) + i % p.d;
    p.keys[place] = keys[i];
    p.values[place] = keys[p.kv_heads * p.d + i];
  }
}

// kElements elements at `pointer`, of which `count` are there.
template <typename T, bool kVectors>
__device__ __forceinline__ Values<kElements> load_part(const T* pointer, int count) {
  if constexpr (kVectors) {
    if (count > 0) return widen<T, kElements>(load<kElements>(pointer));
    return {};
  } else {
    Values<kElements> values = {};
#pragma unroll
    for (int c = 0; c < kElements; ++c)
      if (c < count) values[c] = to_float(pointer[c]);
    return values;
  }
}

// What a warp knows of G query heads: the largest score, and sums relative to it.
template <int kHeads>
struct Softmax {
  float largest[kHeads], total[kHeads];
  Values<kElements> sum[kHeads];
};

// Adds `other`, of other keys.
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

// What a part of the keys gives for G query heads.
template <int kHeads, int kColumns>
struct PartSums {
  float largest[kHeads], total[kHeads], sum[kHeads][kColumns];
};

// Adds kCount sums, in their order, and calls write(g, c, largest, total, value) for the elements
// first + threadIdx.x, ... of `heads` heads of d.
template <int kCount, int kHeads, typename SumsOf, typename Write>
__device__ __forceinline__ void combine(const SumsOf& sums_of, int d, int first, int threads,
                                        int heads, const Write& write) {
  for (int task = first + static_cast<int>(threadIdx.x); task < heads * d; task += threads) {
    const int g = task / d, c = task % d;
    float largest[kCount], total[kCount], sum[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const auto* sums = sums_of(i);
      largest[i] = sums->largest[g];
      total[i] = sums->total[g];
      sum[i] = sums->sum[g][c];
    }
    float most = -INFINITY, all = 0.0f, value = 0.0f;
#pragma unroll
    for (int i = 0; i < kCount; ++i) most = fmaxf(most, largest[i]);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float factor = total[i] > 0.0f ? expf(largest[i] - most) : 0.0f;
      all += total[i] * factor;
      value += sum[i] * factor;
    }
    write(g, c, most, all, value);
  }
}

// The keys of one part, by a block. kLanes lanes of a warp share a key, 32 / kLanes keys are read
// together.
template <typename T, int kLanes, int kHeads, bool kVectors>
__device__ __forceinline__ void attend_part(const CacheParameters<T>& p, const std::int32_t* blocks,
                                            const T* row, int kv, int end,
                                            const Values<kElements> (&query)[kHeads], int part,
                                            PartSums<kHeads, kLanes * kElements>* of_warps,
                                            PartSums<kHeads, kLanes * kElements>& result) {
  constexpr int kKeys = 32 / kLanes;            // of a warp's step
  constexpr int kUnroll = kHeads == 1 ? 4 : 2;  // steps whose loads are in flight together
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int column = lane % kLanes * kElements, there = p.d - column;
  const T* new_key = row + std::int64_t{p.heads + kv} * p.d + column;
  const T* new_value = new_key + std::int64_t{p.kv_heads} * p.d;
  Softmax<kHeads> state;
#pragma unroll
  for (int g = 0; g < kHeads; ++g) {
    state.largest[g] = -INFINITY;
    state.total[g] = 0.0f;
    state.sum[g] = {};
  }
  // The last position may be one that no block has appended yet.
  const int appended = p.append ? end - 1 : end;
  for (int first = (part * kWarps + warp) * kKeys * kUnroll; first < end;
       first += kParts * kWarps * kKeys * kUnroll) {
    Values<kElements> keys[kUnroll], values[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int key = first + u * kKeys + lane / kLanes;
      keys[u] = {};
      values[u] = {};
      if (key >= end) continue;
      const std::int64_t place = key < appended ? p.place(blocks, key, kv) + column : 0;
      keys[u] = load_part<T, kVectors>(key < appended ? p.keys + place : new_key, there);
      values[u] = load_part<T, kVectors>(key < appended ? p.values + place : new_value, there);
    }
#pragma unroll
    for (int g = 0; g < kHeads; ++g) {
      const float before = state.largest[g];
      float scores[kUnroll], most = before;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        float score = 0.0f;
#pragma unroll
        for (int c = 0; c < kElements; ++c) score = fmaf(query[g][c], keys[u][c], score);
#pragma unroll
        for (int step = kLanes / 2; step > 0; step /= 2) score += __shfl_xor_sync(~0u, score, step);
        scores[u] = first + u * kKeys + lane / kLanes < end ? score : -INFINITY;
        most = fmaxf(most, scores[u]);
      }
      state.largest[g] = most;  // -infinity where all keys are past the end
      if (most == -INFINITY) most = 0.0f;
      const float correction = expf(before - most);
      state.total[g] *= correction;
#pragma unroll
      for (int c = 0; c < kElements; ++c) state.sum[g][c] *= correction;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const float probability = expf(scores[u] - most);
        state.total[g] += probability;
#pragma unroll
        for (int c = 0; c < kElements; ++c)
          state.sum[g][c] = fmaf(probability, values[u][c], state.sum[g][c]);
      }
    }
  }
#pragma unroll
  for (int g = 0; g < kHeads; ++g) {
#pragma unroll
    for (int step = 16; step >= kLanes; step /= 2) {
      Values<kElements> sum;
      const float largest = __shfl_xor_sync(~0u, state.largest[g], step);
      const float total = __shfl_xor_sync(~0u, state.total[g], step);
#pragma unroll
      for (int c = 0; c < kElements; ++c) sum[c] = __shfl_xor_sync(~0u, state.sum[g][c], step);
      merge(state, g, largest, total, sum);
    }
    if (lane < kLanes) {
#pragma unroll
      for (int c = 0; c < kElements; ++c) of_warps[warp].sum[g][column + c] = state.sum[g][c];
    }
    if (lane == 0) {
      of_warps[warp].largest[g] = state.largest[g];
      of_warps[warp].total[g] = state.total[g];
    }
  }
  __syncthreads();
  combine<kWarps, kHeads>([&](int w) { return &of_warps[w]; }, p.d, 0, kThreads, kHeads,
                          [&](int g, int c, float largest, float total, float value) {
                            result.sum[g][c] = value;
                            if (c == 0) {
                              result.largest[g] = largest;
                              result.total[g] = total;
                            }
                          });
  __syncthreads();
}

// A block, or with kCluster kParts of them, for each row, head of K and V and group of query heads.
// Bound by the bytes of the cache; for few rows, by latency.
template <typename T, int kLanes, int kHeads, bool kVectors, bool kCluster>
__device__ __forceinline__ void attend(const CacheParameters<T>& p) {
  constexpr int kColumns = kLanes * kElements;
  using Sums = PartSums<kHeads, kColumns>;
  __shared__ Sums of_warps[kWarps], of_parts[kCluster ? 1 : kParts];
  const int group = p.heads / p.kv_heads, chunks = (group + kHeads - 1) / kHeads;
  const int kv = static_cast<int>(blockIdx.y) / chunks;
  const int first_head = kv * group + static_cast<int>(blockIdx.y) % chunks * kHeads;
  const int heads = min(kHeads, (kv + 1) * group - first_head);
  constexpr unsigned kBlocks = kCluster ? kParts : 1;
  const int t = static_cast<int>(blockIdx.x / kBlocks);
  const int part = static_cast<int>(blockIdx.x % kBlocks);
  const int column = static_cast<int>(threadIdx.x) % kLanes * kElements;
  allow_dependents();
  wait_for_previous();
  const std::int32_t line = p.lines[t];
  const int end = line < 0 ? 0 : p.row_positions[t] + 1;
  const std::int32_t* blocks = p.table + line * p.columns;
  const T* row = p.row(t);
  Values<kElements> query[kHeads];
#pragma unroll
  for (int g = 0; g < kHeads; ++g) {
    query[g] = {};
    if (g < heads)
      query[g] =
          load_part<T, kVectors>(row + std::int64_t{first_head + g} * p.d + column, p.d - column);
#pragma unroll
    for (int c = 0; c < kElements; ++c) query[g][c] *= p.scale;
  }
  if constexpr (kCluster) {
    attend_part<T, kLanes, kHeads, kVectors>(p, blocks, row, kv, end, query, part, of_warps,
                                             of_parts[0]);
  } else {
    for (int i = 0; i < kParts; ++i)
      attend_part<T, kLanes, kHeads, kVectors>(p, blocks, row, kv, end, query, i, of_warps,
                                               of_parts[i]);
  }
  if (p.append && part == 0 && first_head == kv * group && end > 0) {
    const std::int64_t place = p.place(blocks, end - 1, kv);
    const T* from = row + std::int64_t{p.heads + kv} * p.d;
    for (int i = threadIdx.x; i < p.d; i += kThreads) {
      p.keys[place + i] = from[i];
      p.values[place + i] = from[std::int64_t{p.kv_heads} * p.d + i];
    }
  }
  const auto write = [&](int g, int c, float, float total, float value) {
    p.out[(std::int64_t{t} * p.heads + first_head + g) * p.d + c] =
        from_float<T>(end > 0 ? value / total : 0.0f);
  };
#if __CUDA_ARCH__ >= 900
  if constexpr (kCluster) {
    const cg::cluster_group cluster = cg::this_cluster();
    cluster.sync();
    combine<kParts, kHeads>([&](int part) { return cluster.map_shared_rank(&of_parts[0], part); },
                            p.d, part * kThreads, kParts * kThreads, heads, write);
    cluster.sync();  // no block ends while another reads its memory
    return;
  }
#endif
  combine<kParts, kHeads>([&](int part) { return &of_parts[part]; }, p.d, 0, kThreads, heads,
                          write);
}

template <typename T, int kLanes, int kHeads, bool kVectors, bool kCluster>
__global__ void __launch_bounds__(kThreads) attend_rows(const CacheParameters<T> p) {
#if __CUDA_ARCH__ >= 900
  attend<T, kLanes, kHeads, kVectors, kCluster>(p);
#else
  if constexpr (!kCluster) attend<T, kLanes, kHeads, kVectors, kCluster>(p);
#endif
}

template <typename T>
CacheParameters<T> parameters_of(const Tensor& qkv, const KeyValueCache& cache,
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
          .append = false};
}

}  // namespace

void cache_append(const CacheAppend& args, const Context& context) {
  const CacheSizes sizes =
      cache_sizes("cache_append", args.qkv, args.cache, args.heads, args.kv_heads);
  if (sizes.rows == 0) return;
  dispatch_cuda(args.qkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto p = parameters_of<T>(args.qkv, args.cache, args.rows, sizes);
    launch_early(append_rows<T>, dim3(static_cast<unsigned>(sizes.rows)), 256, 0, context, 1, p);
  });
}

void attention_paged(const AttentionPaged& args, const Context& context) {
  const char* op = "attention_paged";
  const CacheSizes sizes = cache_sizes(op, args.qkv, args.cache, args.heads, args.kv_heads);
  const std::int64_t d = sizes.head_dim;
  check_matrix(op, "out", args.out, args.qkv.dtype, {sizes.rows, sizes.heads * d});
  TRIREME_CHECK(d <= kMaxHead, "{}: head dimension {}, at most {}", op, d, kMaxHead);
  if (sizes.rows == 0) return;
  const int group = static_cast<int>(sizes.heads / sizes.kv_heads);
  const int lanes = static_cast<int>((d + kElements - 1) / kElements);
  dispatch_cuda(args.qkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    auto p = parameters_of<T>(args.qkv, args.cache, args.rows, sizes);
    p.out = args.out.as<T>();
    p.append = args.append;
    const bool vectors = d % kElements == 0 && aligned16(p.qkv) && aligned16(p.keys) &&
                         aligned16(p.values) && sizes.width() % kElements == 0 &&
                         p.stride % kElements == 0;
    const auto enqueue = [&](auto* kernel, int heads, unsigned cluster) {
      const int chunks = (group + heads - 1) / heads;
      const dim3 grid(static_cast<unsigned>(sizes.rows) * cluster,
                      static_cast<unsigned>(sizes.kv_heads * chunks));
      launch_early(kernel, grid, kThreads, 0, context, cluster, p);
    };
    const auto with = [&](auto lanes_of, auto heads_of, auto vectors_of) {
      constexpr int kLanes = decltype(lanes_of)::value, kHeads = decltype(heads_of)::value;
      constexpr bool kVectors = decltype(vectors_of)::value;
      // Where the GPU is not full without them.
      const std::int64_t tasks = sizes.rows * sizes.heads / std::min(group, kHeads);
      const bool clusters = context.capability >= 90 && tasks < 2 * context.sms;
      if constexpr (sizeof(PartSums<kHeads, kLanes * kElements>) * (kParts + kWarps) <= 48 << 10) {
        if (!clusters) return enqueue(attend_rows<T, kLanes, kHeads, kVectors, false>, kHeads, 1);
      } else {  // in less shared memory
        if (context.capability < 90)
          return enqueue(attend_rows<T, kLanes, 1, kVectors, false>, 1, 1);
      }
      enqueue(attend_rows<T, kLanes, kHeads, kVectors, true>, kHeads, kParts);
    };
    if (!vectors) {
      using One = std::integral_constant<int, 1>;
      return with(std::integral_constant<int, 32>{}, One{}, std::false_type{});
    }
    dispatch_at_least(lanes, std::integer_sequence<int, 8, 16, 32>(), [&](auto lanes_of) {
      dispatch_at_least(std::min(group, kMaxGroup), std::integer_sequence<int, 1, 4, 8>(),
                        [&](auto heads_of) { with(lanes_of, heads_of, std::true_type{}); });
    });
  });
}

}  // namespace trireme::kernels::cuda
