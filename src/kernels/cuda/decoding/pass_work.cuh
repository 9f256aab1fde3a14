// What the blocks of a decoding pass are told, and how they hand results to each other.
//
// A result goes from block to block in words that hold a value and a tag: an element's 16 bits
// with 16 of the tag, a float with 32. The tag is new in every pass, and a reader polls the words
// until they have it. So no block waits for more than what it reads, and no barrier of the grid is
// needed. (As in NCCL's LL protocol.)
#pragma once

#include "kernels/cuda/decoding/attention_keys.cuh"
#include "kernels/cuda/decoding/linear_parts.cuh"

namespace trireme::kernels::cuda {

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
