// Groups of consecutive elements, loaded and stored at once and computed with in fp32. Kernels that
// take the width as a template parameter have a 16-byte path and a scalar path in one source.
#pragma once

#include <type_traits>

#include "kernels/cuda/preconditions.hpp"
#include "kernels/cuda/types.cuh"

namespace trireme::kernels::cuda {

/// kWidth consecutive elements as they are stored, at an address that is a multiple of their size
/// (of 16 for more). Whole words, so that two half-precision elements share a register.
template <typename T, int kWidth>
struct alignas(kWidth * sizeof(T) < 16 ? kWidth * sizeof(T) : 16) Elements {
  using Word = std::conditional_t<kWidth * sizeof(T) % 4 == 0, std::uint32_t, std::uint16_t>;
  Word words[kWidth * sizeof(T) / sizeof(Word)];
};

/// The values of kWidth elements.
template <int kWidth>
struct Values {
  float values[kWidth];

  __device__ __forceinline__ float& operator[](int i) { return values[i]; }
  __device__ __forceinline__ float operator[](int i) const { return values[i]; }
};

/// The bits of `from` as another type of the same size. (std::bit_cast refuses CUDA's 16-bit
/// types.)
template <typename To, typename From>
__device__ __forceinline__ To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  return reinterpret_cast<const To&>(from);
}

/// What one instruction moves.
template <int kBytes>
using Transfer = std::conditional_t<
    kBytes % 16 == 0, uint4,
    std::conditional_t<kBytes == 8, uint2, std::conditional_t<kBytes == 4, unsigned, ushort>>>;

/// The elements at `pointer`.
template <int kWidth, typename T>
__device__ __forceinline__ Elements<T, kWidth> load(const T* pointer) {
  using Part = Transfer<kWidth * sizeof(T)>;
  Elements<T, kWidth> elements;
#pragma unroll
  for (unsigned i = 0; i < sizeof(elements) / sizeof(Part); ++i)
    reinterpret_cast<Part*>(&elements)[i] = reinterpret_cast<const Part*>(pointer)[i];
  return elements;
}

/// Writes elements to global memory. In PTX, since the compiler takes some 16-byte assignments
/// apart.
template <typename T, int kWidth>
__device__ __forceinline__ void store(T* pointer, const Elements<T, kWidth>& elements) {
  using Part = Transfer<kWidth * sizeof(T)>;
#pragma unroll
  for (unsigned i = 0; i < sizeof(elements) / sizeof(Part); ++i) {
    if constexpr (sizeof(Part) == 16) {
      const Part& part = reinterpret_cast<const Part*>(&elements)[i];
      asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(
                       __cvta_generic_to_global(reinterpret_cast<Part*>(pointer) + i)),
                   "r"(part.x), "r"(part.y), "r"(part.z), "r"(part.w)
                   : "memory");
    } else {
      reinterpret_cast<Part*>(pointer)[i] = reinterpret_cast<const Part*>(&elements)[i];
    }
  }
}

/// The values of elements.
template <typename T, int kWidth>
__device__ __forceinline__ Values<kWidth> widen(const Elements<T, kWidth>& elements) {
  Values<kWidth> values;
  if constexpr (std::is_same_v<T, float>) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] = __uint_as_float(elements.words[i]);
  } else if constexpr (kWidth == 1) {
    values[0] = to_float(bits_as<T>(elements.words[0]));
  } else {
#pragma unroll
    for (int i = 0; i < kWidth; i += 2) {
      const std::uint32_t word = elements.words[i / 2];
      if constexpr (std::is_same_v<T, __nv_bfloat16>) {
        // The upper half of a float is a bf16 number.
        values[i] = __uint_as_float(word << 16);
        values[i + 1] = __uint_as_float(word & 0xFFFF0000u);
      } else {
        const float2 pair = __half22float2(bits_as<__half2>(word));
        values[i] = pair.x;
        values[i + 1] = pair.y;
      }
    }
  }
  return values;
}

/// Values rounded to elements of T.
template <typename T, int kWidth>
__device__ __forceinline__ Elements<T, kWidth> narrow(const Values<kWidth>& values) {
  Elements<T, kWidth> elements;
  if constexpr (std::is_same_v<T, float>) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) elements.words[i] = __float_as_uint(values[i]);
  } else if constexpr (kWidth == 1) {
    elements.words[0] = bits_as<std::uint16_t>(from_float<T>(values[0]));
  } else {
#pragma unroll
    for (int i = 0; i < kWidth; i += 2) {
      if constexpr (std::is_same_v<T, __nv_bfloat16>)
        elements.words[i / 2] =
            bits_as<std::uint32_t>(__floats2bfloat162_rn(values[i], values[i + 1]));
      else
        elements.words[i / 2] = bits_as<std::uint32_t>(__floats2half2_rn(values[i], values[i + 1]));
    }
  }
  return elements;
}

/// Calls function(integral_constant<int, w>{}), w being the elements of T in 16 bytes when
/// `vectors` holds, else 1.
template <typename T, typename Function>
void dispatch_width(bool vectors, Function&& function) {
  if (vectors)
    function(std::integral_constant<int, 16 / static_cast<int>(sizeof(T))>{});
  else
    function(std::integral_constant<int, 1>{});
}

/// Whether rows of `columns` elements of T can be read 16 bytes at a time at each of `pointers`.
template <typename T, typename... Pointers>
bool rows_aligned16(std::int64_t columns, const Pointers*... pointers) {
  return columns % (16 / static_cast<std::int64_t>(sizeof(T))) == 0 && (aligned16(pointers) && ...);
}

}  // namespace trireme::kernels::cuda
