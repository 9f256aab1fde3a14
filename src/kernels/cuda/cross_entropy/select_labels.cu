// One block: a few microseconds of latency for the labels of a micro-batch.
#include <cstdio>

#include "core/cuda/check.hpp"
#include "kernels/cross_entropy.hpp"
#include "kernels/cuda/preconditions.hpp"

namespace trireme::kernels::cuda {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;

/// Each round places the labels of kThreads tokens behind those before them.
__global__ void __launch_bounds__(kThreads) place_labels(const SelectLabels args) {
  __shared__ int counts[2][kWarps];  // of a round's warps: the other round's may still be read
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  std::int64_t before = 0;
  for (std::int64_t begin = 0, round = 0; begin < args.tokens; begin += kThreads, ++round) {
    const std::int64_t t = begin + threadIdx.x;
    const std::int32_t label = t < args.tokens ? args.labels[t] : -1;
    const unsigned counting = __ballot_sync(~0u, label >= 0);
    if (lane == 0) counts[round % 2][warp] = __popc(counting);
    __syncthreads();
    // Every warp sums the counts of all: those of the warps before it, and of the round.
    const int count = counts[round % 2][lane];
    int sum = count;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_up_sync(~0u, sum, distance);
      if (lane >= distance) sum += other;
    }
    const int of_earlier_warps = __shfl_sync(~0u, sum - count, warp);
    const std::int64_t i = before + of_earlier_warps + __popc(counting & ((1u << lane) - 1));
    before += __shfl_sync(~0u, sum, 31);
    if (t < args.tokens) args.places[t] = label >= 0 ? static_cast<std::int32_t>(i) : -1;
    if (label >= 0 && i < args.capacity) {
      args.rows[i] = static_cast<std::int32_t>(t);
      args.selected[i] = label;
    }
  }
  if (before > args.capacity) {
    if (threadIdx.x == 0)
      printf("select_labels: %lld tokens have labels, expected %lld at most\n",
             static_cast<long long>(before), static_cast<long long>(args.capacity));
    __trap();
  }
  for (std::int64_t i = before + threadIdx.x; i < args.capacity; i += kThreads)
    args.rows[i] = args.selected[i] = -1;
}
static_assert(kWarps == 32, "a lane for each warp");

}  // namespace

void select_labels(const SelectLabels& args, const Context& context) {
  TRIREME_CHECK(args.labels && args.places && args.rows && args.selected,
                "select_labels: something has no memory");
  place_labels<<<1, kThreads, 0, context.stream>>>(args);
  TRIREME_CUDA_LAUNCHED(place_labels);
}

}  // namespace trireme::kernels::cuda
