// Element types of the CUDA kernels: conversions, 16-byte accesses, vectors of elements;
// copies to shared memory.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "core/cuda/check.hpp"
#include "core/tensor.hpp"
#include "kernels/preconditions.hpp"

namespace trireme {

template <>
inline constexpr DType dtype_of<__nv_bfloat16> = DType::bf16;
template <>
inline constexpr DType dtype_of<__half> = DType::f16;

namespace kernels::cuda {

/// Calls function(T{}) with the CUDA type of `dtype`: float, __nv_bfloat16 or __half. Throws
/// InternalError for fp64 and FP8, which no CUDA kernel computes in.
template <typename Function>
decltype(auto) dispatch_cuda(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::bf16:
      return function(__nv_bfloat16{});
    case DType::f16:
      return function(__half{});
    case DType::f32:
      return function(float{});
    case DType::f64:
    case DType::float8_e4m3:
    case DType::float8_e5m2:
      throw InternalError("CUDA kernels do not compute in {}", name_of(dtype));
  }
  throw_unknown_dtype(dtype);
}

/// The value of an element, and an element rounded to nearest from a value.
__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
template <typename T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ __half from_float<__half>(float x) {
  return __float2half_rn(x);
}

/// Sixteen bytes of consecutive elements: what one thread reads or writes at a time.
template <typename T>
struct alignas(16) Pack {
  static constexpr int kSize = 16 / sizeof(T);
  T values[kSize];
};

/// The pack at `pointer`, which must be aligned to 16 bytes.
template <typename T>
__device__ __forceinline__ Pack<T> load_pack(const T* pointer) {
  return *reinterpret_cast<const Pack<T>*>(pointer);
}
template <typename T>
__device__ __forceinline__ void store_pack(T* pointer, const Pack<T>& pack) {
  *reinterpret_cast<Pack<T>*>(pointer) = pack;
}

}  // namespace kernels::cuda

}  // namespace trireme

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

// ---- largest magnitudes

/// The largest magnitude of elements that a kernel writes, to raise `*amax` with; null: none is
/// kept. Magnitudes are compared by their bits, so that NaN is the largest: the maximum does not
/// depend on the order of threads. Made, and used, by whole warps.
template <typename T>
class LargestMagnitude {
 public:
  /// *amax is read ahead: few warps have more than those before them, and need the atomic
  /// operation.
  __device__ __forceinline__ explicit LargestMagnitude(float* amax)
      : amax_(reinterpret_cast<unsigned*>(amax)),
        known_(amax == nullptr ? ~0u : *static_cast<const volatile unsigned*>(amax_)) {}

  template <int kWidth>
  __device__ __forceinline__ void take(const Elements<T, kWidth>& elements) {
    for (const auto word : elements.words) take(word);
  }
  /// One element of 32 bits, or one or two of 16.
  __device__ __forceinline__ void take(std::uint32_t word) {
    if constexpr (sizeof(T) == 2)
      bits_ = __vmaxu2(bits_, word & 0x7FFF7FFFu);
    else
      bits_ = max(bits_, word & 0x7FFFFFFFu);
  }

  /// That of a warp's threads, as the bits of a float.
  __device__ __forceinline__ unsigned of_warp() const {
    if constexpr (sizeof(T) == 2) {
      const auto largest = static_cast<std::uint16_t>(max(bits_ >> 16, bits_ & 0xFFFFu));
      return __reduce_max_sync(~0u, __float_as_uint(to_float(bits_as<T>(largest))));
    } else {
      return __reduce_max_sync(~0u, bits_);
    }
  }

  __device__ __forceinline__ void raise() const {
    if (amax_ == nullptr) return;
    const unsigned bits = of_warp();
    if (threadIdx.x % 32 == 0 && bits > known_) atomicMax(amax_, bits);
  }

 private:
  unsigned* amax_;
  unsigned known_, bits_ = 0;
};

// ---- copies from global to shared memory that run while their threads compute

/// The block's dynamic shared memory.
__device__ __forceinline__ unsigned char* shared_memory() {
  extern __shared__ __align__(128) unsigned char memory[];
  return memory;
}

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

/// Starts copying kBytes (4, 8 or 16, aligned to as much) to shared memory; zeros when not `valid`,
/// without reading.
template <int kBytes>
__device__ __forceinline__ void copy_async(void* shared, const void* global, bool valid) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  const int read = valid ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                 "l"(global), "r"(read)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(shared)),
                 "l"(global), "n"(kBytes), "r"(read)
                 : "memory");
  }
}
/// Closes a group of copies.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until at most kLeft of this thread's groups are under way.
template <int kLeft>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

}  // namespace trireme::kernels::cuda
