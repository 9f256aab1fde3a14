// Tensor cores from shared memory: copies, mma.sync, fragments, and GEMMs of tiles; and dropout of
// fragments of attention probabilities.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/attention.hpp"
#include "kernels/cuda/attention/tiles.hpp"
#include "kernels/cuda/common/elements.cuh"

namespace trireme::kernels::cuda {

/// Four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8, and gets elements
/// 2 (l % 4) and the next of row l / 4 of each.
__device__ __forceinline__ void load_matrices(std::uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}
/// The same of the transposed matrices.
__device__ __forceinline__ void load_transposed(std::uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}
/// Two transposed matrices, of the addresses that lanes 0 .. 15 give.
__device__ __forceinline__ void load_transposed(std::uint32_t (&to)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(to[0]), "=r"(to[1])
               : "r"(shared_address(row))
               : "memory");
}

/// c += a b: a 16 x 16, b 16 x 8 of T, c 16 x 8 of float.
template <typename T>
__device__ __forceinline__ void multiply_add(float (&c)[4], const std::uint32_t (&a)[4],
                                             std::uint32_t b0, std::uint32_t b1);
template <>
__device__ __forceinline__ void multiply_add<__nv_bfloat16>(float (&c)[4],
                                                            const std::uint32_t (&a)[4],
                                                            std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void multiply_add<__half>(float (&c)[4], const std::uint32_t (&a)[4],
                                                     std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Two values rounded to T, the first in the low half.
template <typename T>
__device__ __forceinline__ std::uint32_t pack_pair(float low, float high);
template <>
__device__ __forceinline__ std::uint32_t pack_pair<__nv_bfloat16>(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
template <>
__device__ __forceinline__ std::uint32_t pack_pair<__half>(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

/// 2^x to 2 units in the last place; 0 for results below 2^-126.
__device__ __forceinline__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Waits until another block has set `*turn` to `expected`; sees what that block wrote before.
__device__ __forceinline__ void wait_for_turn(const unsigned* turn, unsigned expected) {
  unsigned now;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
  } while (now != expected);
}
/// Sets `*turn`, after everything that this thread, and others before the last barrier, wrote.
__device__ __forceinline__ void pass_turn(unsigned* turn, unsigned next) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(turn), "r"(next) : "memory");
}

/// Rounds 16 x (8 kTiles) accumulators into rows of shared memory, from `to` on: rows 0 .. 7 times
/// `low_factor`, rows 8 .. 15 times `high_factor`.
template <typename T, int kTiles>
__device__ __forceinline__ void store_fragments(T* to, int stride, const float (&from)[kTiles][4],
                                                float low_factor, float high_factor, int lane) {
  T* row = to + fragment_row(lane) * stride + fragment_column(lane);
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    *reinterpret_cast<std::uint32_t*>(row + 8 * n) =
        pack_pair<T>(from[n][0] * low_factor, from[n][1] * low_factor);
    *reinterpret_cast<std::uint32_t*>(row + 8 * stride + 8 * n) =
        pack_pair<T>(from[n][2] * high_factor, from[n][3] * high_factor);
  }
}

/// The columns 16 step .. 16 step + 15 of 16 x (8 kTiles) accumulators, rounded, as fragment A.
template <typename T, int kTiles>
__device__ __forceinline__ void pack_scores(std::uint32_t (&a)[4], const float (&from)[kTiles][4],
                                            int step) {
  a[0] = pack_pair<T>(from[2 * step][0], from[2 * step][1]);
  a[1] = pack_pair<T>(from[2 * step][2], from[2 * step][3]);
  a[2] = pack_pair<T>(from[2 * step + 1][0], from[2 * step + 1][1]);
  a[3] = pack_pair<T>(from[2 * step + 1][2], from[2 * step + 1][3]);
}

/// The addresses that lane `lane` gives to load_matrices and load_transposed for a fragment of a
/// matrix in shared memory whose first element is at `tile`.
/// A (16 x 16) of a row-major matrix; also B (16 k x 16 n) of a row-major one, transposed.
template <typename T>
__device__ __forceinline__ T* fragment_a(T* tile, int stride, int lane) {
  return tile + lane % 16 * stride + lane / 16 * 8;
}
/// B (16 k x 16 n) of a matrix stored with n as rows; also A (16 x 16) of a matrix stored with k as
/// rows, transposed.
template <typename T>
__device__ __forceinline__ T* fragment_b(T* tile, int stride, int lane) {
  return tile + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8;
}

/// c += A B^T: A [16 kRowTiles, D] at `rows` and B [8 kColumnTiles, D] at `columns` in shared
/// memory.
template <typename T, int D, int kRowTiles, int kColumnTiles>
__device__ __forceinline__ void multiply_rows(float (&c)[kRowTiles][kColumnTiles][4], const T* rows,
                                              const T* columns, int lane) {
  constexpr int kStride = tile_stride(D);
  rows = fragment_a(rows, kStride, lane);
  columns = fragment_b(columns, kStride, lane);
#pragma unroll
  for (int k_step = 0; k_step < D / 16; ++k_step) {
    std::uint32_t a[kRowTiles][4];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) load_matrices(a[r], rows + 16 * r * kStride + 16 * k_step);
#pragma unroll
    for (int n = 0; n < kColumnTiles; n += 2) {
      std::uint32_t b[4];
      load_matrices(b, columns + 8 * n * kStride + 16 * k_step);
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        multiply_add<T>(c[r][n], a[r], b[0], b[1]);
        multiply_add<T>(c[r][n + 1], a[r], b[2], b[3]);
      }
    }
  }
}

/// c += A B: A the accumulators `weights`, rounded, B [8 kWeightTiles, 8 kColumnTiles] at `rows` in
/// shared memory.
template <typename T, int kStride, int kRowTiles, int kColumnTiles, int kWeightTiles>
__device__ __forceinline__ void multiply_weights(float (&c)[kRowTiles][kColumnTiles][4],
                                                 const float (&weights)[kRowTiles][kWeightTiles][4],
                                                 const T* rows, int lane) {
  rows = fragment_a(rows, kStride, lane);
#pragma unroll
  for (int k_step = 0; k_step < kWeightTiles / 2; ++k_step) {
    std::uint32_t a[kRowTiles][4];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) pack_scores<T>(a[r], weights[r], k_step);
#pragma unroll
    for (int n = 0; n < kColumnTiles; n += 2) {
      std::uint32_t b[4];
      load_transposed(b, rows + 16 * k_step * kStride + 8 * n);
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        multiply_add<T>(c[r][n], a[r], b[0], b[1]);
        multiply_add<T>(c[r][n + 1], a[r], b[2], b[3]);
      }
    }
  }
}

// ---- dropout of attention probabilities: the decisions of a warp's fragments as bits

/// Dropout of an operation. Without it the mask's threshold is 0 and `kept` 1, and the rest is not
/// read.
struct AttentionDropout {
  AttentionMask mask;  ///< of sample 0
  std::int64_t first_head = 0;
  float kept = 1.0f;  ///< what kept probabilities are multiplied by
};

/// Dropout of one head of one sample.
struct HeadDropout {
  AttentionMask mask;
  std::uint64_t first_row;  ///< global head * s
  int s;

  __device__ HeadDropout(const AttentionDropout& dropout, int sample, int head, int s)
      : mask(dropout.mask),
        first_row(static_cast<std::uint64_t>(dropout.first_head + head) * s),
        s(s) {
    mask.stream.sample += sample;
  }

  /// Whether the probability of `query` and `key` is kept.
  __device__ bool keeps(int query, int key) const {
    const std::uint64_t element = (first_row + query) * s + key;
    const Philox4 words = mask.words(element / 8);
    const auto i = static_cast<unsigned>(element % 8);
    const std::uint32_t word = i < 2 ? words.x : i < 4 ? words.y : i < 6 ? words.z : words.w;
    return AttentionMask::bits(word, i) >= mask.threshold;
  }

  /// The decisions of eight keys from `key` on, a multiple of 8, as bits; s is a multiple of 8.
  __device__ std::uint32_t keeps_octet(int query, int key) const {
    const Philox4 words = mask.words((first_row + query) * (s / 8) + key / 8);
    // Bit 16 of these sums is set where the bits are not below the threshold.
    const std::uint32_t rest = 0x10000u - mask.threshold;
    std::uint32_t octet = 0;
    const std::uint32_t all[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      octet |= ((all[i] & 0xFFFF) + rest) >> (16 - 2 * i) & (1u << 2 * i);
      octet |= ((all[i] >> 16) + rest) >> (15 - 2 * i) & (2u << 2 * i);
    }
    return octet;
  }
};

/// Puts the bits of tiles 0, 2, 4, 6 and of tiles 1, 3, 5, 7, each with 8 from tile to tile, in one
/// word with 4 from tile to tile; `bits`, of the first four, are those that count.
__device__ __forceinline__ std::uint32_t interleave_tiles(std::uint32_t even, std::uint32_t odd,
                                                          std::uint32_t bits) {
  return (even & 0x01010101u * bits) | (odd & 0x01010101u * bits) << 4;
}

/// The decisions of 16 queries x (8 kTiles) keys, queries as rows, for s a multiple of 8: element e
/// of tile n is kept when bit 4 n + e % 2 of kept[e / 2] is set.
template <int kTiles>
__device__ __forceinline__ void draw_query_octets(std::uint32_t (&kept)[2],
                                                  const HeadDropout& dropout, int query, int key,
                                                  int lane) {
  static_assert(kTiles % 2 == 0 && kTiles <= 8);
  const KeyOctet octet = forward_octet(lane);
  std::uint32_t own = 0;
#pragma unroll
  for (int j = 0; j < kTiles / 2; ++j)
    own |= dropout.keeps_octet(query + octet.query, key + 8 * (2 * j + octet.tile)) << 8 * j;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::uint32_t even = __shfl_sync(~0u, own, forward_source(lane, 2 * half, 0));
    const std::uint32_t odd = __shfl_sync(~0u, own, forward_source(lane, 2 * half, 1));
    kept[half] = interleave_tiles(even >> forward_bit(lane, 0), odd >> forward_bit(lane, 0), 3);
  }
}

/// The decisions of 16 keys x (8 kTiles) queries, keys as rows, likewise: element e of tile n is
/// kept when bit 4 n of kept[e] is set.
template <int kTiles>
__device__ __forceinline__ void draw_key_octets(std::uint32_t (&kept)[4],
                                                const HeadDropout& dropout, int query, int key,
                                                int lane) {
  static_assert(kTiles % 2 == 0 && kTiles <= 8);
  const QueryOctet octet = backward_octet(lane);
  std::uint32_t own = 0;
#pragma unroll
  for (int j = 0; j < kTiles / 2; ++j)
    own |= dropout.keeps_octet(query + 8 * (2 * j + octet.tile) + octet.query, key + octet.key)
           << 8 * j;
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const std::uint32_t even = __shfl_sync(~0u, own, backward_source(lane, e, 0));
    const std::uint32_t odd = __shfl_sync(~0u, own, backward_source(lane, e, 1));
    kept[e] = interleave_tiles(even >> backward_bit(lane), odd >> backward_bit(lane), 1);
  }
}

/// The decisions as draw_query_octets gives them, for any s.
template <int kTiles>
__device__ __forceinline__ void draw_queries(std::uint32_t (&kept)[2], const HeadDropout& dropout,
                                             int query, int key, int lane) {
  if (dropout.s % 8 == 0) return draw_query_octets<kTiles>(kept, dropout, query, key, lane);
  kept[0] = kept[1] = 0;
#pragma unroll 1
  for (int i = 0; i < 4 * kTiles; ++i) {
    const int n = i / 4, e = i % 4;
    const bool keep = dropout.keeps(query + fragment_row(lane) + 8 * (e / 2),
                                    key + 8 * n + fragment_column(lane) + e % 2);
    const std::uint32_t bit = static_cast<std::uint32_t>(keep) << (4 * n + e % 2);
    if (e / 2 == 0) {
      kept[0] |= bit;
    } else {
      kept[1] |= bit;
    }
  }
}

/// The decisions as draw_key_octets gives them, for any s.
template <int kTiles>
__device__ __forceinline__ void draw_keys(std::uint32_t (&kept)[4], const HeadDropout& dropout,
                                          int query, int key, int lane) {
  if (dropout.s % 8 == 0) return draw_key_octets<kTiles>(kept, dropout, query, key, lane);
  kept[0] = kept[1] = kept[2] = kept[3] = 0;
#pragma unroll 1
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const bool keep = dropout.keeps(query + 8 * n + fragment_column(lane) + e % 2,
                                      key + fragment_row(lane) + 8 * (e / 2));
      kept[e] |= static_cast<std::uint32_t>(keep) << 4 * n;
    }
  }
}

}  // namespace trireme::kernels::cuda
