#include "kernels/cuda/attention/launch.cuh"
#include "kernels/cuda/attention/parameters.cuh"
#include "kernels/cuda/attention/plain.cuh"

namespace trireme::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
// Prompts above this many positions are worked on in tiles of queries.
constexpr int kFewQueries = 8;

template <typename T>
struct CachedParameters {
  const T* qkv;
  T* keys;
  T* values;
  T* out;
  AttentionSizes sizes;  // s is the number of new positions
  int past;
  std::int64_t capacity;
  float scale;

  /// Of query head `task`.
  __device__ std::int64_t cache_offset(int task) const {
    return task / (sizes.heads / sizes.kv_heads) * capacity * sizes.d;
  }
  __device__ HeadRows<const T> cached(const T* cache, int task) const {
    return {cache + cache_offset(task), sizes.d, past + sizes.s, sizes.d};
  }
};

// Copies the new keys and values to the caches. Bound by bytes, of which there are few.
template <typename T>
__global__ void append(const CachedParameters<T> p) {
  const AttentionSizes& sizes = p.sizes;
  const std::int64_t position = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t row = position / sizes.d;
  const int column = static_cast<int>(position % sizes.d);
  // The first of the query heads that read this head of K and V.
  const int task = static_cast<int>(row / sizes.s) * (sizes.heads / sizes.kv_heads);
  if (task >= sizes.b * sizes.heads) return;
  const std::int64_t t = row % sizes.s;
  const std::int64_t from = t * sizes.qkv_stride() + column;
  const std::int64_t to = p.cache_offset(task) + (p.past + t) * sizes.d + column;
  p.keys[to] = p.qkv[from + sizes.qkv_offset(task, 1)];
  p.values[to] = p.qkv[from + sizes.qkv_offset(task, 2)];
}

// One block per query of one head; each warp takes every eighth key, its lanes share the columns.
// Bound by the bytes of the caches; for one sequence, by latency.
template <typename T, int kColumns>
__global__ void __launch_bounds__(kThreads) attend_few(const CachedParameters<T> p) {
  __shared__ float sums[kWarps][32 * kColumns];
  __shared__ float largest_of[kWarps], total_of[kWarps];
  const AttentionSizes& sizes = p.sizes;
  const int task = static_cast<int>(blockIdx.x) / sizes.s,
            t = static_cast<int>(blockIdx.x) % sizes.s;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, d = sizes.d;
  const T* q = p.qkv + t * sizes.qkv_stride() + sizes.qkv_offset(task, 0);
  const T* keys = p.keys + p.cache_offset(task);
  const T* values = p.values + p.cache_offset(task);

  float query[kColumns], sum[kColumns] = {}, largest = -INFINITY, total = 0.0f;
#pragma unroll
  for (int c = 0; c < kColumns; ++c)
    query[c] = lane + 32 * c < d ? to_float(q[lane + 32 * c]) * p.scale : 0.0f;
  constexpr int kGroup = 4;  // keys at a time, to have their loads in flight together
  const int end = p.past + t + 1;
  for (int first = warp; first < end; first += kGroup * kWarps) {
    float scores[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int key = first + i * kWarps;
      scores[i] = 0.0f;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int column = lane + 32 * c;
        if (key < end && column < d)
          scores[i] = fmaf(query[c], to_float(keys[std::int64_t{key} * d + column]), scores[i]);
      }
    }
    float most = largest;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
#pragma unroll
      for (int step = 16; step > 0; step /= 2) scores[i] += __shfl_xor_sync(~0u, scores[i], step);
      if (first + i * kWarps >= end) scores[i] = -INFINITY;
      most = fmaxf(most, scores[i]);
    }
    const float correction = expf(largest - most);
    largest = most;
    total *= correction;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) sum[c] *= correction;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int key = first + i * kWarps;
      const float probability = expf(scores[i] - most);
      total += probability;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int column = lane + 32 * c;
        if (key < end && column < d)
          sum[c] = fmaf(probability, to_float(values[std::int64_t{key} * d + column]), sum[c]);
      }
    }
  }

  // ---- the warps' parts, in their order -------------------------------------------------------
#pragma unroll
  for (int c = 0; c < kColumns; ++c) sums[warp][lane + 32 * c] = sum[c];
  if (lane == 0) {
    largest_of[warp] = largest;
    total_of[warp] = total;
  }
  __syncthreads();
  float most = -INFINITY, all = 0.0f;
  for (int w = 0; w < kWarps; ++w) most = fmaxf(most, largest_of[w]);
  for (int w = 0; w < kWarps; ++w) all += total_of[w] * expf(largest_of[w] - most);
  for (int column = threadIdx.x; column < d; column += kThreads) {
    float value = 0.0f;
    for (int w = 0; w < kWarps; ++w) value += sums[w][column] * expf(largest_of[w] - most);
    p.out[t * sizes.out_stride() + sizes.out_offset(task) + column] = from_float<T>(value / all);
  }
}

// One block per 64 queries of one head.
template <typename T, int kColumns>
__global__ void __launch_bounds__(kPlainThreads) attend_many(const CachedParameters<T> p) {
  __shared__ PlainMemory memory;
  const AttentionSizes& sizes = p.sizes;
  const int blocks = tiles_of(sizes.s, kPlainTile);
  const int task = static_cast<int>(blockIdx.x) / blocks;
  plain_attend<T, kColumns>(
      {p.qkv + sizes.qkv_offset(task, 0), sizes.qkv_stride(), sizes.s, sizes.d},
      p.cached(p.keys, task), p.cached(p.values, task),
      {p.out + sizes.out_offset(task), sizes.out_stride(), sizes.s, sizes.d},
      static_cast<int>(blockIdx.x) % blocks * kPlainTile, p.past, true, {nullptr, 0}, p.scale,
      memory, [](int, int) { return 1.0f; }, [](int, float) {});
}

}  // namespace

void launch_cached(const AttentionCached& args, const Context& context) {
  dispatch_cuda(args.qkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    const AttentionSizes sizes = attention_sizes(
        AttentionForward{.qkv = args.qkv, .heads = args.heads, .kv_heads = args.kv_heads}, false);
    const CachedParameters<T> p{
        .qkv = args.qkv.as<T>(),
        .keys = args.keys.as<T>(),
        .values = args.values.as<T>(),
        .out = args.out.as<T>(),
        .sizes = sizes,
        .past = static_cast<int>(args.past),
        .capacity = args.keys.shape[2],
        .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(sizes.d)))};
    const std::int64_t tasks = std::int64_t{sizes.b} * sizes.heads;
    const std::int64_t appended = std::int64_t{sizes.b} * sizes.kv_heads * sizes.s * sizes.d;
    launch(append<T>, (appended + kThreads - 1) / kThreads, kThreads, 0, context, p);
    dispatch_columns(sizes.d, [&](auto columns) {
      constexpr int kColumns = decltype(columns)::value;
      if (sizes.s <= kFewQueries) {
        launch(attend_few<T, kColumns / 2>, tasks * sizes.s, kThreads, 0, context, p);
      } else {
        launch(attend_many<T, kColumns>, tasks * tiles_of(sizes.s, kPlainTile), kPlainThreads, 0,
               context, p);
      }
    });
  });
}

}  // namespace trireme::kernels::cuda
