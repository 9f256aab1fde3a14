#include <algorithm>

#include "kernels/cuda/common/elements.cuh"
#include "kernels/cuda/decoding/launch.cuh"
#include "kernels/decoding.hpp"

namespace trireme::kernels::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kBuckets = 256;  // of 8 bits

// Orders logits as the contract does: a larger key comes first, and no two are equal.
template <typename T>
__device__ __forceinline__ std::uint64_t key_of(T logit, int id) {
  const float value = to_float(logit) + 0.0f;  // -0 counts as 0
  const std::uint32_t bits = __float_as_uint(value);
  const std::uint32_t ordered = isnan(value)           ? 0xFFFFFFFFu
                                : (bits & 0x80000000u) ? ~bits
                                                       : bits | 0x80000000u;
  return std::uint64_t{ordered} << 32 | (0xFFFFFFFFu - static_cast<std::uint32_t>(id));
}

__device__ __forceinline__ int id_of(std::uint64_t key) {
  return static_cast<int>(0xFFFFFFFFu - static_cast<std::uint32_t>(key));
}

template <typename T, typename Body>
__device__ __forceinline__ void for_each_key(const T* row, int columns, const Body& body) {
#pragma unroll 4
  for (int id = threadIdx.x; id < columns; id += kThreads) body(key_of(row[id], id));
}

// The largest key of the block's threads, in thread 0.
__device__ std::uint64_t block_max(std::uint64_t key) {
  __shared__ std::uint64_t of_warp[kWarps];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const std::uint64_t other = __shfl_xor_sync(~0u, key, step);
    key = other > key ? other : key;
  }
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = key;
  __syncthreads();
  for (int warp = 0; warp < kWarps; ++warp) key = of_warp[warp] > key ? of_warp[warp] : key;
  return key;
}

// A block for each row: a radix select of the smallest key that is taken, then a sort of the taken
// ones by rank. Bound by the latency of reading the row from L2, two to four times.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    top_of_rows(const T* logits, std::int64_t stride, int columns, int count, float* values,
                std::int32_t* ids) {
  __shared__ int histogram[kBuckets];
  __shared__ std::uint64_t smallest, taken[kMaxTopLogits];
  __shared__ int left, number, complete;
  allow_dependents();
  wait_for_previous_kernel();
  const T* row = logits + blockIdx.x * stride;
  values += std::int64_t{blockIdx.x} * count;
  ids += std::int64_t{blockIdx.x} * count;
  if (count == 1) {
    std::uint64_t largest = 0;
    for_each_key(row, columns, [&](std::uint64_t key) { largest = key > largest ? key : largest; });
    largest = block_max(largest);
    if (threadIdx.x == 0) {
      ids[0] = id_of(largest);
      values[0] = to_float(row[id_of(largest)]);
    }
    return;
  }
  if (threadIdx.x == 0) {
    smallest = 0;
    left = count;
    number = complete = 0;
  }
  __syncthreads();
  for (int shift = 56; shift >= 0 && !complete; shift -= 8) {
    if (threadIdx.x < kBuckets) histogram[threadIdx.x] = 0;
    __syncthreads();
    const std::uint64_t known = smallest;  // its bits above this byte
    for_each_key(row, columns, [&](std::uint64_t key) {
      if (shift == 56 || key >> (shift + 8) == known >> (shift + 8))
        atomicAdd(&histogram[key >> shift & 0xFF], 1);
    });
    __syncthreads();
    if (threadIdx.x == 0) {
      int bucket = kBuckets - 1;
      for (; histogram[bucket] < left; --bucket) left -= histogram[bucket];
      smallest |= static_cast<std::uint64_t>(bucket) << shift;
      complete = histogram[bucket] == left;
    }
    __syncthreads();
  }
  for_each_key(row, columns, [&](std::uint64_t key) {
    if (key >= smallest) taken[atomicAdd(&number, 1)] = key;
  });
  __syncthreads();
  if (threadIdx.x >= count) return;
  const std::uint64_t key = taken[threadIdx.x];
  int rank = 0;
  for (int i = 0; i < count; ++i) rank += taken[i] > key;
  ids[rank] = id_of(key);
  values[rank] = to_float(row[id_of(key)]);
}

}  // namespace

void top_logits(const TopLogits& args, const Context& context) {
  const char* op = "top_logits";
  const Extents logits = extents_of(op, "logits", args.logits);
  const std::int64_t count = extents_of(op, "values", args.values).columns;
  TRIREME_CHECK(count >= 1 && count <= std::min(args.columns, kMaxTopLogits) &&
                    args.columns <= logits.columns,
                "{}: {} of {} columns, at most {}", op, count, args.columns, kMaxTopLogits);
  check_matrix(op, "values", args.values, DType::f32, {logits.rows, count});
  if (logits.rows == 0) return;
  dispatch_cuda(args.logits.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch_early(top_of_rows<T>, dim3(static_cast<unsigned>(logits.rows)), kThreads, 0, context, 1,
                 static_cast<const T*>(args.logits.as<T>()), logits.columns,
                 static_cast<int>(args.columns), static_cast<int>(count), args.values.as<float>(),
                 args.ids);
  });
}

}  // namespace trireme::kernels::cuda
