// Dropout of attention probabilities: the decisions of a warp's fragments as bits.
#pragma once

#include "kernels/attention.hpp"
#include "kernels/cuda/attention/tiles.hpp"

namespace trireme::kernels::cuda {

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
