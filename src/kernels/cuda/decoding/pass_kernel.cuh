// The kernel of a decoding pass.
#pragma once

#include "kernels/cuda/decoding/pass_attention.cuh"

namespace trireme::kernels::cuda {

/// Copies an instruction by one warp: starts with fetch(), ends with keep().
template <typename T>
struct InstructionCopy {
  static constexpr int kWords = sizeof(PassInstruction<T>) / 8, kOwn = (kWords + 31) / 32;
  static_assert(sizeof(PassInstruction<T>) % 8 == 0);
  std::uint64_t words[kOwn];

  __device__ void fetch(const PassInstruction<T>* from) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int at = i * 32 + static_cast<int>(threadIdx.x) % 32;
      if (at < kWords) words[i] = __ldg(reinterpret_cast<const unsigned long long*>(from) + at);
    }
  }
  __device__ void keep(PassInstruction<T>& to) const {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int at = i * 32 + static_cast<int>(threadIdx.x) % 32;
      if (at < kWords) reinterpret_cast<std::uint64_t*>(&to)[at] = words[i];
    }
  }
};

// Bound by the bytes of the weights. A block for each SM; all are there at the same time. Attention
// reads a row of the cache by kLanes lanes, for kHeads heads at most.
template <typename T, int kLanes, int kHeads>
__global__ void __launch_bounds__(kPassThreads, 1)
    decode_pass(const PassInstruction<T>* instructions, const PassShape shape, PassState* state,
                const std::int32_t* line, const std::int32_t* position) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ __align__(16) unsigned char own[sizeof(PassShared<T>)];
  PassShared<T>& shared = *reinterpret_cast<PassShared<T>*>(own);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (threadIdx.x == 0) {
    for (unsigned i = 0; i < kRingChunks; ++i) {
      make_barrier(&shared.ring.full[i], 1);
      make_barrier(&shared.ring.empty[i], kPassReaders);
    }
    publish_barriers();
  }
  const unsigned tag = *reinterpret_cast<const volatile unsigned*>(&state->pass);
  PassSequence sequence{};
  if (line) {
    sequence.line = *line;
    sequence.end = sequence.line < 0 ? 0 : *position + 1;
  }
  __syncthreads();
  if (warp == kPassReaders) {
    RingWriter ring{.barriers = &shared.ring, .memory = memory, .capacity = shape.ring};
    InstructionCopy<T> next;
    next.fetch(instructions);
    for (int i = 0; i < shape.instructions; ++i) {
      __syncwarp();
      next.keep(shared.written);
      __syncwarp();
      if (i + 1 < shape.instructions) next.fetch(instructions + i + 1);
      const PassInstruction<T>& instruction = shared.written;
      if (instruction.is_attention)
        stream_keys<T, kLanes, kHeads>(instruction, sequence, ring);
      else
        stream_linear(instruction, ring);
    }
  } else {
    RingReader ring(&shared.ring, memory, shape.ring);
    unsigned char* work = memory + shape.ring;
    unsigned turn = 0;
    InstructionCopy<T> next;
    if (warp == kPassReaders - 1) {
      next.fetch(instructions);
      next.keep(shared.read[0]);
    }
    for (int i = 0; i < shape.instructions; ++i) {
      sync_readers();  // all have ended the last instruction, and this one can be read
      const bool fetches = warp == kPassReaders - 1 && i + 1 < shape.instructions;
      if (fetches) next.fetch(instructions + i + 1);
      const PassInstruction<T>& instruction = shared.read[i % 2];
      if (instruction.is_attention)
        run_attention<T, kLanes, kHeads>(instruction, sequence, tag, work, ring);
      else
        run_linear(instruction, tag, reinterpret_cast<T*>(work), shared, ring, turn);
      if (fetches) next.keep(shared.read[(i + 1) % 2]);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0 && atomicAdd(&state->exited, 1) == gridDim.x - 1) {
    state->exited = 0;
    state->pass = tag + 1;
  }
#endif
}

}  // namespace trireme::kernels::cuda
