// Dropout of attention probabilities: the decisions of a warp's fragments as bits.
#pragma once

#include "core/philox.hpp"
#include "kernels/cuda/attention/tiles.hpp"

namespace trireme::kernels::cuda {

/// Dropout of an operation. Without it `threshold` is 0 and `kept` 1, and the rest is not read.
struct AttentionDropout {
  DropoutStream stream;  ///< of sample 0
  std::int64_t first_head = 0;
  std::uint32_t threshold = 0;
  float kept = 1.0f;  ///< what kept probabilities are multiplied by

  __device__ static std::uint32_t word(const Philox4& words, int i) {
    return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
  }
};

/// Dropout of one head of one sample.
struct HeadDropout {
  DropoutStream stream;
  std::uint64_t first_row;  ///< global head * s
  std::uint32_t threshold;
  int s;

  __device__ HeadDropout(const AttentionDropout& dropout, int sample, int head, int s)
      : stream(dropout.stream),
        first_row(static_cast<std::uint64_t>(dropout.first_head + head) * s),
        threshold(dropout.threshold),
        s(s) {
    stream.sample += sample;
  }

  /// Whether the probability of `query` and `key` is kept.
  __device__ bool keeps(int query, int key) const {
    const std::uint64_t element = (first_row + query) * s + key;
    return AttentionDropout::word(stream.words(element / 4), element % 4) >= threshold;
  }

  /// The decisions of four keys from `key` on, a multiple of 4, as bits; s is a multiple of 4.
  __device__ std::uint32_t keeps_quad(int query, int key) const {
    const Philox4 words = stream.words((first_row + query) * (s / 4) + key / 4);
    return static_cast<std::uint32_t>(words.x >= threshold) |
           static_cast<std::uint32_t>(words.y >= threshold) << 1 |
           static_cast<std::uint32_t>(words.z >= threshold) << 2 |
           static_cast<std::uint32_t>(words.w >= threshold) << 3;
  }
};

/// The decisions of 16 queries x (8 kTiles) keys, queries as rows: element e of tile n is kept when
/// bit 4 n + e % 2 of kept[e / 2] is set.
template <int kTiles>
__device__ __forceinline__ void draw_queries(std::uint32_t (&kept)[2], const HeadDropout& dropout,
                                             int query, int key, int lane) {
  static_assert(kTiles <= 8);
  if (dropout.s % 4 == 0) {
    const KeyQuad quad = forward_quad(lane);
    std::uint32_t own = 0;
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
      own |= dropout.keeps_quad(query + quad.query, key + 8 * n + quad.key) << 4 * n;
#pragma unroll
    for (int half = 0; half < 2; ++half)
      kept[half] =
          __shfl_sync(~0u, own, forward_source(lane, 2 * half)) >> forward_bit(lane, 2 * half);
  } else {
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
}

/// The decisions of 16 keys x (8 kTiles) queries, keys as rows: element e of tile n is kept when
/// bit 4 n of kept[e] is set.
template <int kTiles>
__device__ __forceinline__ void draw_keys(std::uint32_t (&kept)[4], const HeadDropout& dropout,
                                          int query, int key, int lane) {
  static_assert(kTiles <= 8);
  if (dropout.s % 4 == 0) {
    const KeyQuad quad = backward_quad(lane);
    std::uint32_t own = 0;
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
      own |= dropout.keeps_quad(query + 8 * n + quad.query, key + quad.key) << 4 * n;
#pragma unroll
    for (int e = 0; e < 4; ++e)
      kept[e] = __shfl_sync(~0u, own, backward_source(lane, e)) >> backward_bit(lane);
  } else {
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
}

}  // namespace trireme::kernels::cuda
