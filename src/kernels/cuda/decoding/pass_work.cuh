// What the blocks of a decoding pass are told, and how they hand results to each other.
//
// A result goes from block to block in words that hold a value and a tag: an element's 16 bits
// with 16 of the tag, a float with 32. The tag is new in every pass, and a reader polls the words
// until they have it. So no block waits for more than what it reads, and no barrier of the grid is
// needed. (As in NCCL's LL protocol.)
#pragma once

#include "kernels/cuda/decoding/attention_keys.cuh"
#include "kernels/cuda/decoding/linear_parts.cuh"
#include "kernels/cuda/hopper/barriers.cuh"

namespace trireme::kernels::cuda {

// ---- what a pass streams through shared memory: chunks of any size in a ring of bytes, filled by
// bulk copies of one warp and read by all others

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

// ---- work and results

/// Where a vector of 16-bit elements is read: tagged words of this pass, or elements that were
/// there before it.
template <typename T>
struct PassInput {
  const std::uint32_t* tagged = nullptr;  ///< null: `plain`
  const T* plain = nullptr;
};

/// Where one is written: both where they are not null.
template <typename T>
struct PassOutput {
  std::uint32_t* tagged = nullptr;
  T* plain = nullptr;
};

/// A DecodeLinear of one row. A block computes `share` outputs, the first `extra` blocks, counted
/// from the block -rotation on, one more; in parts of `part` outputs, whose weights come in
/// `chunks` of `steps` of kLinearStep columns.
template <typename T>
struct LinearWork {
  const T* weight;
  NormParameters<T> norm;
  const T* bias;
  PassInput<T> residual;
  int n, k, share, extra, part, chunks, steps;
  bool gated;
  DecodeEpilogue function;
};

/// An AttentionPaged of one row with `append`, and what is done to q and k before.
template <typename T>
struct AttentionWork {
  CacheParameters<T> cache;
  const float* rotary;  ///< Rotary::table, or null
  T* rotated;           ///< qkv, where rotated q and k are written; or null
  uint2* partials;      ///< tagged floats: AttentionSums::parts of all blocks
};

template <typename T>
struct PassInstruction {
  PassInput<T> x;
  PassOutput<T> y;
  int rotation;
  bool is_attention;
  LinearWork<T> linear;
  AttentionWork<T> attention;
};

/// In memory across passes.
struct PassState {
  unsigned pass;    ///< the tag of the next one, from 1 on
  unsigned exited;  ///< blocks that have left this one
};

// ---- tagged words

__device__ __forceinline__ std::uint32_t tagged_word(std::uint16_t bits, unsigned tag) {
  return tag << 16 | bits;
}
__device__ __forceinline__ uint4 poll_words(const std::uint32_t* words) {
  uint4 value;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(words)
               : "memory");
  return value;
}
__device__ __forceinline__ bool have_tag(const uint4& words, unsigned tag) {
  const std::uint32_t wrong = ((words.x ^ tag << 16) | (words.y ^ tag << 16) |
                               (words.z ^ tag << 16) | (words.w ^ tag << 16)) >>
                              16;
  return wrong == 0;
}

/// Reads eight elements from `i` on, a multiple of 8: started, so that several are on the way.
template <typename T>
struct PassRead {
  uint4 low, high;

  __device__ __forceinline__ void start(const PassInput<T>& input, int i) {
    if (input.tagged) {
      low = poll_words(input.tagged + i);
      high = poll_words(input.tagged + i + 4);
    } else {
      low = *reinterpret_cast<const uint4*>(input.plain + i);
    }
  }
  __device__ __forceinline__ bool is_there(const PassInput<T>& input, unsigned tag) const {
    return !input.tagged || (have_tag(low, tag) && have_tag(high, tag));
  }
  /// What has been read; it is there.
  __device__ __forceinline__ Elements<T, 8> value(const PassInput<T>& input) const {
    Elements<T, 8> elements;
    if (!input.tagged) {
      elements.words[0] = low.x;
      elements.words[1] = low.y;
      elements.words[2] = low.z;
      elements.words[3] = low.w;
      return elements;
    }
    elements.words[0] = __byte_perm(low.x, low.y, 0x5410);
    elements.words[1] = __byte_perm(low.z, low.w, 0x5410);
    elements.words[2] = __byte_perm(high.x, high.y, 0x5410);
    elements.words[3] = __byte_perm(high.z, high.w, 0x5410);
    return elements;
  }
};
template <typename T>
__device__ __forceinline__ Elements<T, 8> read_input(const PassInput<T>& input, int i,
                                                     unsigned tag) {
  PassRead<T> read;
  do read.start(input, i);
  while (!read.is_there(input, tag));
  return read.value(input);
}
/// Reads one element: started, so that others are on the way.
template <typename T>
struct PassElement {
  std::uint32_t word = 0;

  __device__ __forceinline__ void start(const PassInput<T>& input, int i) {
    if (input.tagged)
      asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];"
                   : "=r"(word)
                   : "l"(input.tagged + i)
                   : "memory");
    else
      asm volatile(
          "{\n"
          ".reg .u16 element;\n"
          "ld.global.u16 element, [%1];\n"
          "cvt.u32.u16 %0, element;\n"
          "}"
          : "=r"(word)
          : "l"(input.plain + i)
          : "memory");
  }
  __device__ __forceinline__ bool is_there(const PassInput<T>& input, unsigned tag) const {
    return !input.tagged || word >> 16 == (tag & 0xFFFF);
  }
  __device__ __forceinline__ float value() const {
    return to_float(bits_as<T>(static_cast<std::uint16_t>(word)));
  }
  __device__ __forceinline__ float finish(const PassInput<T>& input, int i, unsigned tag) {
    while (!is_there(input, tag)) start(input, i);
    return value();
  }
};
template <typename T>
__device__ __forceinline__ void write_output(const PassOutput<T>& output, int i, float value,
                                             unsigned tag) {
  const T rounded = from_float<T>(value);
  if (output.tagged)
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(output.tagged + i),
                 "r"(tagged_word(bits_as<std::uint16_t>(rounded), tag))
                 : "memory");
  if (output.plain) output.plain[i] = rounded;
}

__device__ __forceinline__ void write_float(uint2* to, float value, unsigned tag) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to),
               "l"(static_cast<std::uint64_t>(tag) << 32 | __float_as_uint(value))
               : "memory");
}
__device__ __forceinline__ float read_float(const uint2* from, unsigned tag) {
  std::uint64_t word;
  do {
    asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
  } while (static_cast<unsigned>(word >> 32) != tag);
  return __uint_as_float(static_cast<std::uint32_t>(word));
}

}  // namespace trireme::kernels::cuda
