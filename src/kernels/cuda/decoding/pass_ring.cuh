// What a decoding pass streams through shared memory: chunks of any size in a ring of bytes, filled
// by bulk copies of one warp and read by all others.
#pragma once

#include "kernels/cuda/hopper/barriers.cuh"

namespace trireme::kernels::cuda {

inline constexpr unsigned kRingChunks = 32;  // on the way or being read
/// Copies of chunks that are on the way at a time. They saturate the memory; more would queue
/// there, and every other read that misses the L2 cache would wait for all of them.
inline constexpr unsigned kRingCopies = 2;

/// Barriers of chunk i at i % kRingChunks: its bytes are there; its readers are done.
struct RingBarriers {
  Barrier full[kRingChunks], empty[kRingChunks];
  unsigned begins[kRingChunks];  ///< places of the chunks, of the producer
};

/// Bytes of a chunk in the ring.
__host__ __device__ constexpr unsigned ring_bytes(unsigned bytes) { return (bytes + 127) & ~127u; }

/// Where the next chunk lies: the producer and its readers count alike. A chunk is in one piece.
struct RingPosition {
  unsigned turn = 0;    ///< bytes of the turns around the ring before this one
  unsigned offset = 0;  ///< in this turn
  unsigned index = 0;   ///< chunks before

  __device__ unsigned begin() const { return turn + offset; }
  __device__ unsigned parity() const { return index / kRingChunks & 1; }
  __device__ unsigned slot() const { return index % kRingChunks; }
  __device__ void fit(unsigned bytes, unsigned capacity) {
    if (offset + bytes <= capacity) return;
    turn += capacity;
    offset = 0;
  }
  __device__ void advance(unsigned bytes) {
    offset += bytes;
    ++index;
  }
};

/// `value`, the same in all lanes, from a shuffle: the compiler cannot compute it again, as it
/// would for every chunk, and so keeps it in a register.
__device__ __forceinline__ unsigned in_register(unsigned value) {
  return __shfl_sync(~0u, value, 0);
}

/// The readers' side: all warps but the producer's read every chunk in turn.
struct RingReader {
  const unsigned char* memory;
  unsigned capacity;
  unsigned place, full, empty;  ///< addresses in shared memory: of `memory`, and of the barriers
  RingPosition at = {};

  __device__ RingReader(RingBarriers* barriers, const unsigned char* memory, unsigned capacity)
      : memory(memory), capacity(capacity) {
    place = in_register(shared_address(memory));
    full = in_register(shared_address(barriers->full));
    empty = in_register(shared_address(barriers->empty));
  }

  /// Waits for a chunk of `bytes`, a result of ring_bytes(); its address in shared memory.
  __device__ unsigned wait_for(unsigned bytes) {
    at.fit(bytes, capacity);
    wait(full + at.slot() * sizeof(Barrier), at.parity());
    return place + at.offset;
  }
  /// What wait_for() has returned, as a pointer.
  template <typename T>
  __device__ const T* pointer(unsigned chunk) const {
    return reinterpret_cast<const T*>(memory + (chunk - place));
  }
  /// The warp has read it.
  __device__ void release(unsigned bytes) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(empty + at.slot() * sizeof(Barrier));
    at.advance(bytes);
  }
};

/// The producer's side, of one warp.
struct RingWriter {
  RingBarriers* barriers;
  unsigned char* memory;
  unsigned capacity;
  RingPosition at = {};
  unsigned oldest = 0;  ///< the first chunk that may still be read
  unsigned tail = 0;    ///< where it begins

  /// Waits for room for a chunk of `bytes`, a result of ring_bytes(), to which `copied` bytes will
  /// be copied, and until fewer than kRingCopies chunks are on the way.
  __device__ unsigned char* make_room(unsigned bytes, unsigned copied) {
    at.fit(bytes, capacity);
    while (at.begin() + bytes - tail > capacity || at.index - oldest == kRingChunks) {
      wait(&barriers->empty[oldest % kRingChunks], oldest / kRingChunks & 1);
      ++oldest;
      tail = oldest == at.index ? at.begin() : barriers->begins[oldest % kRingChunks];
    }
    if (at.index >= kRingCopies) {
      const unsigned before = at.index - kRingCopies;
      wait(&barriers->full[before % kRingChunks], before / kRingChunks & 1);
    }
    if (threadIdx.x % 32 == 0) {
      barriers->begins[at.slot()] = at.begin();
      arrive_expect_tx(&barriers->full[at.slot()], static_cast<int>(copied));
    }
    __syncwarp();
    return memory + at.offset;
  }
  /// Starts a copy to it, of one lane; a multiple of 16 bytes.
  __device__ void copy(unsigned char* to, const void* from, unsigned bytes) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(&barriers->full[at.slot()]))
        : "memory");
  }
  __device__ void advance(unsigned bytes) { at.advance(bytes); }
};

}  // namespace trireme::kernels::cuda
