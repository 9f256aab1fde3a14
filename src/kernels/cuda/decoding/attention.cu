#include <cooperative_groups.h>

#include <algorithm>

#include "kernels/attention.hpp"
#include "kernels/cuda/decoding/attention_keys.cuh"
#include "kernels/cuda/decoding/launch.cuh"
#include "kernels/decoding.hpp"

namespace trireme::kernels::cuda {
namespace {

namespace cg = cooperative_groups;

// A block copies the keys and values of a row. Bound by bytes, of which there are few.
template <typename T>
__global__ void append_rows(const CacheParameters<T> p) {
  wait_for_previous_kernel();
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

// A block, or with kCluster kParts of them, for each row, head of K and V and group of query heads.
// Bound by the bytes of the cache; for few rows, by latency: what earlier passes cached is read
// before the kernel that writes qkv has ended.
template <typename T, int kLanes, int kHeads, bool kVectors, bool kCluster>
__device__ __forceinline__ void attend(const CacheParameters<T>& p) {
  constexpr int kBlocks = kCluster ? kParts : 1;  // of a row
  using Reader = KeyReader<T, kLanes, kHeads, kVectors, kBlocks>;
  using Sums = PartSums<kHeads, kLanes * kElements>;
  __shared__ Sums of_warps[kWarps];
  const int group = p.heads / p.kv_heads, chunks = (group + kHeads - 1) / kHeads;
  const int kv = static_cast<int>(blockIdx.y) / chunks;
  const int first_head = kv * group + static_cast<int>(blockIdx.y) % chunks * kHeads;
  const int heads = min(kHeads, (kv + 1) * group - first_head);
  const int t = static_cast<int>(blockIdx.x) / kBlocks;
  const int block = static_cast<int>(blockIdx.x) % kBlocks;
  allow_dependents();
  const std::int32_t line = p.lines[t];
  const int end = line < 0 ? 0 : p.row_positions[t] + 1;
  const Reader reader{.p = p,
                      .blocks = p.table + line * p.columns,
                      .kv = kv,
                      .begin = p.window > 0 ? max(0, end - p.window) : 0,
                      .end = end};
  // The last position may be one that no block has appended yet.
  const int cached = p.append ? end - 1 : end;
  typename Reader::Step step;
  int first = reader.first_of(block);
  if (p.append) reader.read(first, cached, step);
  wait_for_previous_kernel();
  if (!p.append) reader.read(first, cached, step);
  const T* row = p.row(t);
  const T* new_key = row + std::int64_t{p.heads + kv} * p.d;
  const T* new_value = new_key + std::int64_t{p.kv_heads} * p.d;
  Values<kElements> query[kHeads];
  Softmax<kHeads> state;
#pragma unroll
  for (int g = 0; g < kHeads; ++g) {
    query[g] = state.sum[g] = {};
    if (g < heads)
      query[g] = values_of<T, kVectors>(load_part<T, kVectors>(
          row + std::int64_t{first_head + g} * p.d + reader.column(), p.d - reader.column()));
#pragma unroll
    for (int c = 0; c < kElements; ++c) query[g][c] *= p.scale;
    state.largest[g] = -INFINITY;
    state.total[g] = 0.0f;
  }
  while (first < end) {
    if (p.append) reader.read_new(first, new_key, new_value, step);
    reader.add(first, step, query, state);
    first += Reader::kStride;
    if (first < end) reader.read(first, cached, step);
  }
  write_warp<kLanes, kHeads>(state, of_warps[threadIdx.x / 32]);
  if (p.append && block == 0 && first_head == kv * group && end > 0) {
    const std::int64_t place = p.place(reader.blocks, end - 1, kv);
    for (int i = threadIdx.x; i < p.d; i += kThreads) {
      p.keys[place + i] = new_key[i];
      p.values[place + i] = new_value[i];
    }
  }
  __syncthreads();
  const auto write = [&](int g, int c, const PartSum& all) {
    p.out[(std::int64_t{t} * p.heads + first_head + g) * p.d + c] =
        from_float<T>(end > 0 ? all.sum / all.total : 0.0f);
  };
  if constexpr (kCluster) {
#if __CUDA_ARCH__ >= 900
    __shared__ Sums of_block;
    for (int task = threadIdx.x; task < kHeads * p.d; task += kThreads) {
      const int g = task / p.d, c = task % p.d;
      const PartSum sum = combine_warps(of_warps, g, c);
      of_block.sum[g][c] = sum.sum;
      if (c == 0) {
        of_block.largest[g] = sum.largest;
        of_block.total[g] = sum.total;
      }
    }
    const cg::cluster_group cluster = cg::this_cluster();
    cluster.sync();
    for (int task = block * kThreads + threadIdx.x; task < heads * p.d; task += kParts * kThreads) {
      PartSum parts[kParts];
#pragma unroll
      for (int i = 0; i < kParts; ++i)
        parts[i] = sum_at(cluster.map_shared_rank(&of_block, i), task / p.d, task % p.d);
      write(task / p.d, task % p.d, combine(parts));
    }
    cluster.sync();  // no block ends while another reads its memory
#endif
  } else {
    for (int task = threadIdx.x; task < heads * p.d; task += kThreads)
      write(task / p.d, task % p.d, combine_warps(of_warps, task / p.d, task % p.d));
  }
}

template <typename T, int kLanes, int kHeads, bool kVectors, bool kCluster>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 2 && kHeads == 1 && kLanes == 8 ? 5 : 1)
    attend_rows(const CacheParameters<T> p) {
#if __CUDA_ARCH__ >= 900
  attend<T, kLanes, kHeads, kVectors, kCluster>(p);
#else
  if constexpr (!kCluster) attend<T, kLanes, kHeads, kVectors, kCluster>(p);
#endif
}

}  // namespace

void cache_append(const CacheAppend& args, const Context& context) {
  const CacheSizes sizes =
      cache_sizes("cache_append", args.qkv, args.cache, args.heads, args.kv_heads);
  if (sizes.rows == 0) return;
  dispatch_cuda(args.qkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto p = cache_parameters<T>(args.qkv, args.cache, args.rows, sizes);
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
    const auto p = cache_parameters<T>(args, sizes);
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
      const bool clusters = context.is_hopper() && tasks < 2 * context.sms;
      if (clusters)
        enqueue(attend_rows<T, kLanes, kHeads, kVectors, true>, kHeads, kParts);
      else
        enqueue(attend_rows<T, kLanes, kHeads, kVectors, false>, kHeads, 1);
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
