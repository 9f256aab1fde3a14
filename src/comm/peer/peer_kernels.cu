// Bound by the links between GPUs: of a buffer of n bytes on t ranks, n (t - 1) / t come in for a
// reduce-scatter and go out for an all-gather; an all-reduce does both.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "comm/peer/peer_kernels.hpp"
#include "core/cuda/check.hpp"

namespace trireme::comm {
namespace {

// ---------------------------------------------------------------------------- barrier

__device__ __forceinline__ void store_release(std::uint32_t* flag, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(flag)),
               "r"(value)
               : "memory");
}

__device__ __forceinline__ std::uint32_t load_acquire(const std::uint32_t* flag) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];"
               : "=r"(value)
               : "l"(__cvta_generic_to_global(flag))
               : "memory");
  return value;
}

/// Waits until the same block of every rank has reached barrier `number` of the operation. One
/// thread per peer signals it and waits for it. __syncthreads() orders what the block's other
/// threads did before the release, which is cumulative, and what they do afterwards after the
/// acquire; the release also covers the kernels before this one, which were done when it started.
template <int kRanks>
__device__ __forceinline__ void barrier(const PeerOperation& operation, std::uint32_t number) {
  __syncthreads();
  const int peer = static_cast<int>(threadIdx.x);
  if (peer < kRanks && peer != operation.rank) {
    const std::uint32_t base = operation.base != nullptr ? *operation.base : 0;
    const std::uint32_t epoch = base + operation.epoch + number;
    const int block = static_cast<int>(blockIdx.x);
    store_release(operation.flags[peer] + peer_flag(operation.lane, block, operation.rank), epoch);
    const std::uint32_t* heard =
        operation.flags[operation.rank] + peer_flag(operation.lane, block, peer);
    // No time-out here: the watchdog ends the job when a rank never arrives.
    while (!flag_reached(load_acquire(heard), epoch)) __nanosleep(20);
  }
  __syncthreads();
}

// ---------------------------------------------------------------------------- sums

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ double widen(double x) { return x; }
__device__ __forceinline__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float widen(__half x) { return __half2float(x); }
__device__ __forceinline__ void round_to(float& x, float sum) { x = sum; }
__device__ __forceinline__ void round_to(double& x, double sum) { x = sum; }
__device__ __forceinline__ void round_to(__nv_bfloat16& x, float sum) {
  x = __float2bfloat16_rn(sum);
}
__device__ __forceinline__ void round_to(__half& x, float sum) { x = __float2half_rn(sum); }

/// The element-wise sum of one vector of each rank, in rank order.
template <typename T, int kRanks>
__device__ __forceinline__ uint4 sum_of(const uint4 (&vectors)[kRanks]) {
  constexpr int kElements = kPeerVectorBytes / sizeof(T);
  uint4 result;
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    auto sum = widen(reinterpret_cast<const T*>(&vectors[0])[i]);
#pragma unroll
    for (int p = 1; p < kRanks; ++p) sum += widen(reinterpret_cast<const T*>(&vectors[p])[i]);
    round_to(reinterpret_cast<T*>(&result)[i], sum);
  }
  return result;
}

// ---------------------------------------------------------------------------- exchange

/// Maximum thread blocks of a sum in this rank's memory: more than run concurrently.
constexpr std::int64_t kSumBlocks = 1024;

/// Vectors in flight per thread: eight loads, for a sum one from each rank per vector.
template <int kRanks, bool kSums>
inline constexpr int kUnroll = kSums ? 8 / kRanks : 4;

template <typename T, int kRanks, bool kSums, bool kSpreads>
__global__ void __launch_bounds__(kPeerThreads) exchange(const PeerOperation operation) {
  constexpr int kBatch = kUnroll<kRanks, kSums>;
  const int rank = operation.rank;
  const std::int64_t vectors = operation.vectors;
  const auto part = [&](int p) {
    return reinterpret_cast<uint4*>(operation.data[p]) + rank * vectors;
  };
  barrier<kRanks>(operation, 0);
  for_each_batch<kBatch>(blockIdx.x, gridDim.x, threadIdx.x, vectors, [&](std::int64_t first) {
    // ---- all loads before the first store
    uint4 loaded[kBatch][kSums ? kRanks : 1];
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const std::int64_t at = first + u * kPeerThreads;
      if (at >= vectors) break;
      if constexpr (kSums) {
#pragma unroll
        for (int p = 0; p < kRanks; ++p) loaded[u][p] = part(p)[at];
      } else {
        loaded[u][0] = part(rank)[at];
      }
    }
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const std::int64_t at = first + u * kPeerThreads;
      if (at >= vectors) break;
      const uint4 result = [&] {
        if constexpr (kSums)
          return sum_of<T, kRanks>(loaded[u]);
        else
          return loaded[u][0];
      }();
      if constexpr (kSums) part(rank)[at] = result;
      if constexpr (kSpreads) {
        // Each rank starts with its neighbour: not all with the same.
#pragma unroll
        for (int i = 1; i < kRanks; ++i) part((rank + i) % kRanks)[at] = result;
      }
    }
  });
  barrier<kRanks>(operation, 1);
}

/// A barrier alone, of one block. If each block of a kernel that fills the GPU waited for the other
/// ranks, no SM might be free for a collective of another group that those ranks need to get here.
template <int kRanks>
__global__ void synchronize_ranks(const PeerOperation operation) {
  barrier<kRanks>(operation, 0);
}

template <typename T, int kRanks, bool kSums, bool kSpreads>
void launch(const PeerOperation& operation, cudaStream_t stream) {
  const int blocks = peer_blocks(operation.lane, operation.vectors, kUnroll<kRanks, kSums>);
  exchange<T, kRanks, kSums, kSpreads><<<blocks, kPeerThreads, 0, stream>>>(operation);
  TRIREME_CUDA_LAUNCHED(exchange);
}

template <typename T, int kRanks>
__global__ void __launch_bounds__(kPeerThreads) add_terms(const PeerSum sum) {
  const std::int64_t stride = std::int64_t{gridDim.x} * kPeerThreads;
  for (std::int64_t at = std::int64_t{blockIdx.x} * kPeerThreads + threadIdx.x; at < sum.vectors;
       at += stride) {
    uint4 loaded[kRanks];
#pragma unroll
    for (int p = 0; p < kRanks; ++p) loaded[p] = reinterpret_cast<const uint4*>(sum.terms[p])[at];
    reinterpret_cast<uint4*>(sum.result)[at] = sum_of<T, kRanks>(loaded);
  }
}

template <typename T, int kRanks>
void launch_of_type(PeerKind kind, const PeerOperation& operation, cudaStream_t stream) {
  if (kind == PeerKind::reduce_scatter)
    launch<T, kRanks, /*kSums=*/true, /*kSpreads=*/false>(operation, stream);
  else
    launch<T, kRanks, /*kSums=*/true, /*kSpreads=*/true>(operation, stream);
}

template <int kRanks>
void launch_of_ranks(PeerKind kind, const PeerOperation& operation, DType dtype,
                     cudaStream_t stream) {
  // Copies do not depend on the type.
  if (kind == PeerKind::all_gather)
    return launch<float, kRanks, /*kSums=*/false, /*kSpreads=*/true>(operation, stream);
  switch (dtype) {
    case DType::f32:
      return launch_of_type<float, kRanks>(kind, operation, stream);
    case DType::f64:
      return launch_of_type<double, kRanks>(kind, operation, stream);
    case DType::bf16:
      return launch_of_type<__nv_bfloat16, kRanks>(kind, operation, stream);
    case DType::f16:
      return launch_of_type<__half, kRanks>(kind, operation, stream);
    case DType::float8_e4m3:
    case DType::float8_e5m2:
      throw InternalError("ranks do not sum {}", name_of(dtype));
  }
  throw_unknown_dtype(dtype);
}

template <typename T, int kRanks>
void launch_sum_of_type(const PeerSum& sum, cudaStream_t stream) {
  const std::int64_t blocks = (sum.vectors + kPeerThreads - 1) / kPeerThreads;
  add_terms<T, kRanks>
      <<<static_cast<int>(std::min<std::int64_t>(blocks, kSumBlocks)), kPeerThreads, 0, stream>>>(
          sum);
  TRIREME_CUDA_LAUNCHED(add_terms);
}

template <int kRanks>
void launch_sum(const PeerSum& sum, DType dtype, cudaStream_t stream) {
  switch (dtype) {
    case DType::f32:
      return launch_sum_of_type<float, kRanks>(sum, stream);
    case DType::f64:
      return launch_sum_of_type<double, kRanks>(sum, stream);
    case DType::bf16:
      return launch_sum_of_type<__nv_bfloat16, kRanks>(sum, stream);
    case DType::f16:
      return launch_sum_of_type<__half, kRanks>(sum, stream);
    case DType::float8_e4m3:
    case DType::float8_e5m2:
      throw InternalError("ranks do not sum {}", name_of(dtype));
  }
  throw_unknown_dtype(dtype);
}

}  // namespace

void launch_peer_operation(PeerKind kind, const PeerOperation& operation, DType dtype,
                           cudaStream_t stream) {
  switch (operation.ranks) {
    case 2:
      return launch_of_ranks<2>(kind, operation, dtype, stream);
    case 4:
      return launch_of_ranks<4>(kind, operation, dtype, stream);
    case 8:
      return launch_of_ranks<8>(kind, operation, dtype, stream);
  }
  throw InternalError("an exchange through peer memory of {} ranks", operation.ranks);
}

void launch_peer_barrier(const PeerOperation& operation, cudaStream_t stream) {
  switch (operation.ranks) {
    case 2:
      synchronize_ranks<2><<<1, 32, 0, stream>>>(operation);
      break;
    case 4:
      synchronize_ranks<4><<<1, 32, 0, stream>>>(operation);
      break;
    case 8:
      synchronize_ranks<8><<<1, 32, 0, stream>>>(operation);
      break;
    default:
      throw InternalError("a barrier through peer memory of {} ranks", operation.ranks);
  }
  TRIREME_CUDA_LAUNCHED(synchronize_ranks);
}

void launch_peer_sum(const PeerSum& sum, DType dtype, cudaStream_t stream) {
  switch (sum.ranks) {
    case 2:
      return launch_sum<2>(sum, dtype, stream);
    case 4:
      return launch_sum<4>(sum, dtype, stream);
    case 8:
      return launch_sum<8>(sum, dtype, stream);
  }
  throw InternalError("a sum of {} ranks", sum.ranks);
}

}  // namespace trireme::comm
