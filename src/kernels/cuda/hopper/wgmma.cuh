// wgmma: GEMMs of a warpgroup on Hopper's tensor cores (wgmma, compute capability 9.0 only), which
// run while the warpgroup does something else. The order is always: warpgroup_arrive, wgmmas,
// warpgroup_commit_batch, and warpgroup_wait before the accumulators, or the registers of operand
// A, are touched again. Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

namespace trireme::kernels::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Orders what this thread wrote to registers before the wgmmas that follow.
__device__ __forceinline__ void warpgroup_arrive() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
/// Closes a group of wgmmas.
__device__ __forceinline__ void warpgroup_commit_batch() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most kLeft groups are under way.
template <int kLeft>
__device__ __forceinline__ void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}

/// Keeps the compiler from moving accesses to `registers` across: it does not know that wgmmas
/// work on them until they are waited for.
template <int kCount>
__device__ __forceinline__ void warpgroup_fence_operand(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void warpgroup_fence_operand(std::uint32_t (&registers)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) asm volatile("" : "+r"(registers[i][j])::"memory");
}

// The accumulators of a thread as text and as operands of an instruction.
#define TRIREME_NAMES_32                                                                  \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TRIREME_NAMES_40 TRIREME_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define TRIREME_NAMES_48 TRIREME_NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define TRIREME_NAMES_56 TRIREME_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define TRIREME_NAMES_64 TRIREME_NAMES_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define TRIREME_NAMES_4 "%0, %1, %2, %3"
#define TRIREME_NAMES_96                                                                    \
  TRIREME_NAMES_64                                                                          \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, " \
  "%81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define TRIREME_REGISTERS_4 "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
#define TRIREME_REGISTERS_8(i)                                                                \
  "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), \
      "+f"(c[i + 6]), "+f"(c[i + 7])
#define TRIREME_REGISTERS_32 \
  TRIREME_REGISTERS_8(0), TRIREME_REGISTERS_8(8), TRIREME_REGISTERS_8(16), TRIREME_REGISTERS_8(24)
#define TRIREME_REGISTERS_40 TRIREME_REGISTERS_32, TRIREME_REGISTERS_8(32)
#define TRIREME_REGISTERS_48 TRIREME_REGISTERS_40, TRIREME_REGISTERS_8(40)
#define TRIREME_REGISTERS_56 TRIREME_REGISTERS_48, TRIREME_REGISTERS_8(48)
#define TRIREME_REGISTERS_64 TRIREME_REGISTERS_56, TRIREME_REGISTERS_8(56)
#define TRIREME_REGISTERS_96                                                                       \
  TRIREME_REGISTERS_64, TRIREME_REGISTERS_8(64), TRIREME_REGISTERS_8(72), TRIREME_REGISTERS_8(80), \
      TRIREME_REGISTERS_8(88)

// One instruction for n = N: COUNT accumulators, the numbers of the operands that follow them.
#define TRIREME_WGMMA_SHARED(TYPE, N, COUNT, I0, I1, I2, I3, I4)                                  \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #I2                                       \
               ", 0;\n"                                                                           \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE                    \
               " {" TRIREME_NAMES_##COUNT "}, %" #I0 ", %" #I1 ", add, 1, 1, %" #I3 ", %" #I4     \
                                          ";\n}"                                                  \
               : TRIREME_REGISTERS_##COUNT                                                        \
               : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(kTransposedA), "n"(kTransposedB) \
               : "memory")
#define TRIREME_WGMMA_REGISTERS(TYPE, N, COUNT, I0, I1, I2, I3, I4, I5)                        \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE                 \
               " {" TRIREME_NAMES_##COUNT "}, {%" #I0 ", %" #I1 ", %" #I2 ", %" #I3 "}, %" #I4 \
                                          ", 1, 1, 1, %" #I5 ";"                               \
               : TRIREME_REGISTERS_##COUNT                                                     \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kTransposedB)         \
               : "memory")

#define TRIREME_WGMMA(N, COUNT, I0, I1, I2, I3, I4, I5)                                     \
  template <typename T, int kTransposedA, int kTransposedB>                                 \
  __device__ __forceinline__ void wgmma(float(&c)[COUNT], std::uint64_t a, std::uint64_t b, \
                                        bool add) {                                         \
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {                                       \
      TRIREME_WGMMA_SHARED("bf16", N, COUNT, I0, I1, I2, I3, I4);                           \
    } else {                                                                                \
      TRIREME_WGMMA_SHARED("f16", N, COUNT, I0, I1, I2, I3, I4);                            \
    }                                                                                       \
  }                                                                                         \
  template <typename T, int kTransposedB>                                                   \
  __device__ __forceinline__ void wgmma(float(&c)[COUNT], const std::uint32_t(&a)[4],       \
                                        std::uint64_t b) {                                  \
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {                                       \
      TRIREME_WGMMA_REGISTERS("bf16", N, COUNT, I0, I1, I2, I3, I4, I5);                    \
    } else {                                                                                \
      TRIREME_WGMMA_REGISTERS("f16", N, COUNT, I0, I1, I2, I3, I4, I5);                     \
    }                                                                                       \
  }

/// wgmma: one step of c = (add ? c : 0) + a b, of 16 columns of a [64, 16] and rows of b
/// [16, n] of T, n twice the number of accumulators a thread has. Operands in shared memory are
/// told by descriptors: stored as [64, 16] and [n, 16], or with k as rows, [16, 64] and [16, n],
/// where kTransposed. a in registers is a fragment as of mma.sync; there c is always added to.
TRIREME_WGMMA(8, 4, 4, 5, 6, 7, 8, 9)
TRIREME_WGMMA(64, 32, 32, 33, 34, 35, 36, 37)
TRIREME_WGMMA(80, 40, 40, 41, 42, 43, 44, 45)
TRIREME_WGMMA(96, 48, 48, 49, 50, 51, 52, 53)
TRIREME_WGMMA(112, 56, 56, 57, 58, 59, 60, 61)
TRIREME_WGMMA(128, 64, 64, 65, 66, 67, 68, 69)
TRIREME_WGMMA(192, 96, 96, 97, 98, 99, 100, 101)

#undef TRIREME_WGMMA
#undef TRIREME_WGMMA_REGISTERS
#undef TRIREME_WGMMA_SHARED
#undef TRIREME_REGISTERS_96
#undef TRIREME_REGISTERS_64
#undef TRIREME_REGISTERS_56
#undef TRIREME_REGISTERS_48
#undef TRIREME_REGISTERS_40
#undef TRIREME_REGISTERS_32
#undef TRIREME_REGISTERS_8
#undef TRIREME_REGISTERS_4
#undef TRIREME_NAMES_96
#undef TRIREME_NAMES_64
#undef TRIREME_NAMES_56
#undef TRIREME_NAMES_48
#undef TRIREME_NAMES_40
#undef TRIREME_NAMES_32
#undef TRIREME_NAMES_4

#endif

}  // namespace trireme::kernels::cuda
