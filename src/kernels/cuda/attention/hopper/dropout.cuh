// Dropout of the probabilities that a warpgroup holds as accumulators of wgmma: decisions as bits,
// drawn while GEMMs are under way. Bound by the latency of Philox. For s a multiple of 8.
#pragma once

#include "kernels/cuda/attention/dropout.cuh"

namespace trireme::kernels::cuda {

/// The decisions of a warp's 16 rows and 8 kTiles columns, kTiles a multiple of 8.
template <int kTiles, int kWords>
struct KeptBits {
  static_assert(kTiles % 8 == 0);
  static constexpr int kParts = kTiles / 8;
  std::uint32_t words[kParts][kWords];

  /// Ties the bits to their place in the program: the compiler would draw them where they are used,
  /// when no GEMM is under way any more.
  __device__ __forceinline__ void pin() {
#pragma unroll
    for (auto& part : words)
#pragma unroll
      for (std::uint32_t& word : part) asm volatile("" : "+r"(word)::"memory");
  }
};

/// Of queries as rows, from `query` on, and keys from `key` on.
template <int kTiles>
struct KeptKeys : KeptBits<kTiles, 2> {
  __device__ __forceinline__ void draw(const HeadDropout& dropout, int query, int key, int lane) {
#pragma unroll
    for (int part = 0; part < this->kParts; ++part)
      draw_query_octets<8>(this->words[part], dropout, query, key + 64 * part, lane);
    this->pin();
  }
  /// Whether this thread's accumulator `e` is kept.
  __device__ __forceinline__ bool operator()(int e) const {
    return this->words[e / 32][e / 2 % 2] >> (e / 4 % 8 * 4 + e % 2) & 1;
  }
};

/// Of keys as rows, from `key` on, and queries from `query` on.
template <int kTiles>
struct KeptQueries : KeptBits<kTiles, 4> {
  __device__ __forceinline__ void draw(const HeadDropout& dropout, int query, int key, int lane) {
#pragma unroll
    for (int part = 0; part < this->kParts; ++part)
      draw_key_octets<8>(this->words[part], dropout, query + 64 * part, key, lane);
    this->pin();
  }
  /// Whether this thread's accumulator `e` is kept.
  __device__ __forceinline__ bool operator()(int e) const {
    return this->words[e / 32][e % 4] >> (e / 4 % 8 * 4) & 1;
  }
};

}  // namespace trireme::kernels::cuda
