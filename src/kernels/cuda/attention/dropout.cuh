// Dropout of attention probabilities: which elements of a warp's fragments are kept, as bits. Eight
// consecutive keys of a query, an octet, are one draw of Philox, which one lane makes for those
// that hold the octet's probabilities. Bound by integer instructions: for each octet about 25 of
// the ALU and 25 of the FMA pipe.
#pragma once

#include <cstdint>

#include "kernels/attention.hpp"
#include "kernels/cuda/attention/tiles.hpp"
#include "kernels/cuda/common/arithmetic.hpp"

namespace trireme::kernels::cuda {

/// Dropout of an operation. Without it the mask's threshold is 0 and `kept` 1, and the rest is not
/// read.
struct AttentionDropout {
  AttentionMask mask;                           ///< of sample 0 of the run
  const std::uint64_t* first_sample = nullptr;  ///< Dropout::first_sample
  std::int64_t first_head = 0;
  float kept = 1.0f;  ///< what kept probabilities are multiplied by
  /// The keys of the rounds: operands in constant memory, which cost no instruction.
  AttentionMask::RoundKeys keys;
};

/// Adds the decision whether `bits`, 16 in the upper half of a word, are not below the threshold as
/// the lowest bit of `decisions`: the carry of a sum with 2^32 - 2^16 * threshold, `offset`.
__device__ __forceinline__ void append_decision(std::uint32_t& decisions, std::uint32_t bits,
                                                std::uint32_t offset) {
  asm("{\n"
      ".reg .u32 sum;\n"
      "add.cc.u32 sum, %1, %2;\n"
      "madc.lo.u32 %0, %0, 2, 0;\n"
      "}"
      : "+r"(decisions)
      : "r"(bits), "r"(offset));
}

/// Dropout of one head of one sample, with a threshold above 0.
struct HeadDropout {
  const AttentionDropout& dropout;
  AttentionMask mask;           ///< of the lower word of the sample's number
  std::uint64_t sample_blocks;  ///< 2^48 times the upper word: added to the numbers of blocks
  std::uint64_t first_element;  ///< global head * s^2
  std::uint64_t first_octet;    ///< the same in octets, and sample_blocks
  int s;

  __device__ HeadDropout(const AttentionDropout& dropout, int sample, int head, int s)
      : dropout(dropout), mask(dropout.mask), s(s) {
    const std::uint64_t of_run = sample_of_run(dropout.first_sample, sample);
    mask.stream.sample = static_cast<std::uint32_t>(of_run);
    sample_blocks = of_run >> 32 << 48;
    first_element = static_cast<std::uint64_t>(dropout.first_head + head) * s * s;
    first_octet = first_element / 8 + sample_blocks;
  }

  /// Whether the probability of `query` and `key` is kept.
  __device__ bool keeps(int query, int key) const {
    const std::uint64_t element = first_element + static_cast<std::uint64_t>(query) * s + key;
    const Philox4 words = mask.words(element / 8 + sample_blocks, dropout.keys);
    const auto i = static_cast<unsigned>(element % 8);
    const std::uint32_t word = i < 2 ? words.x : i < 4 ? words.y : i < 6 ? words.z : words.w;
    return AttentionMask::bits(word, i) >= mask.threshold;
  }

  /// The octet of `query` and the keys from `key` on, a multiple of 8 as s has to be: its number
  /// for keeps_octet. The octets of a row follow each other, those of the next row come s / 8
  /// later.
  __device__ __forceinline__ std::uint64_t octet(int query, int key) const {
    const auto row = static_cast<std::uint32_t>(query), octets = static_cast<std::uint32_t>(s / 8);
    return first_octet + std::uint64_t{row} * octets + static_cast<std::uint32_t>(key) / 8;
  }

  /// The decisions of the octet's eight keys, the first in bit 0.
  __device__ __forceinline__ std::uint32_t keeps_octet(std::uint64_t octet) const {
    const Philox4 words = mask.words(octet, dropout.keys);
    const std::uint32_t offset = (0x10000u - mask.threshold) << 16;
    const std::uint32_t all[4] = {words.x, words.y, words.z, words.w};
    std::uint32_t decisions = 0;
#pragma unroll
    for (int i = 3; i >= 0; --i) {
      append_decision(decisions, all[i], offset);
      append_decision(decisions, all[i] << 16, offset);
    }
    return decisions;
  }

  /// The decisions of kCount octets, at most 4, from `first` on in steps of `step`: octet j in byte
  /// j.
  template <int kCount>
  __device__ __forceinline__ std::uint32_t keeps_octets(std::uint64_t first,
                                                        std::uint64_t step) const {
    static_assert(kCount <= 4);
    std::uint32_t decisions = 0;
#pragma unroll
    for (int j = 0; j < kCount; ++j) decisions |= keeps_octet(first + j * step) << 8 * j;
    return decisions;
  }
};

// ---- octets of a warp's tiles; s is a multiple of 8

/// The decisions of tiles of 16 queries x 8 keys, queries as rows, as forward_octet spreads them:
/// those of kTiles tiles from `query` and `key` on, tile 2 j + forward_octet(lane).tile in byte j.
template <int kTiles>
__device__ __forceinline__ std::uint32_t draw_query_octets(const HeadDropout& dropout, int query,
                                                           int key, int lane) {
  static_assert(kTiles % 2 == 0);
  const KeyOctet own = forward_octet(lane);
  return dropout.keeps_octets<kTiles / 2>(dropout.octet(query + own.query, key) + own.tile, 2);
}

/// The same of tiles of 16 keys x 8 queries, keys as rows, as backward_octet spreads them.
template <int kTiles>
__device__ __forceinline__ std::uint32_t draw_key_octets(const HeadDropout& dropout, int query,
                                                         int key, int lane) {
  static_assert(kTiles % 2 == 0);
  const QueryOctet own = backward_octet(lane);
  const auto step = static_cast<std::uint64_t>(2 * dropout.s);  // 16 rows of s / 8 octets
  return dropout.keeps_octets<kTiles / 2>(
      dropout.octet(query + 8 * own.tile + own.query, key + own.key), step);
}

// ---- decisions by a warp's fragments, for mma.sync

/// Puts the bits of tiles 0, 2, 4, 6, at `bit` of each byte of `even`, and of tiles 1, 3, 5, 7, of
/// `odd`, in one word with 4 from tile to tile; `bits`, of the first four, are those that count.
__device__ __forceinline__ std::uint32_t interleave_tiles(std::uint32_t even, std::uint32_t odd,
                                                          int bit, std::uint32_t bits) {
  const std::uint32_t rotated = __funnelshift_r(odd, odd, bit - 4);
  return (even >> bit & 0x01010101u * bits) | (rotated & 0x10101010u * bits);
}

/// Of queries as rows: element e of tile n is kept when bit 4 n + e % 2 of kept[e / 2] is set.
__device__ __forceinline__ void gather_keys(std::uint32_t (&kept)[2], std::uint32_t own, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    kept[half] = interleave_tiles(__shfl_sync(~0u, own, forward_source(lane, 2 * half, 0)),
                                  __shfl_sync(~0u, own, forward_source(lane, 2 * half, 1)),
                                  forward_bit(lane, 0), 3);
  }
}

/// Of keys as rows: element e of tile n is kept when bit 4 n of kept[e] is set.
__device__ __forceinline__ void gather_queries(std::uint32_t (&kept)[4], std::uint32_t own,
                                               int lane) {
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    kept[e] =
        interleave_tiles(__shfl_sync(~0u, own, backward_source(lane, e, 0)),
                         __shfl_sync(~0u, own, backward_source(lane, e, 1)), backward_bit(lane), 1);
  }
}

/// The decisions of 16 queries x (8 kTiles) keys, queries as rows, for any s, as of gather_keys.
template <int kTiles>
__device__ __forceinline__ void draw_queries(std::uint32_t (&kept)[2], const HeadDropout& dropout,
                                             int query, int key, int lane) {
  if (dropout.s % 8 == 0)
    return gather_keys(kept, draw_query_octets<kTiles>(dropout, query, key, lane), lane);
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

/// The decisions of 16 keys x (8 kTiles) queries, keys as rows, for any s, as of gather_queries.
template <int kTiles>
__device__ __forceinline__ void draw_keys(std::uint32_t (&kept)[4], const HeadDropout& dropout,
                                          int query, int key, int lane) {
  if (dropout.s % 8 == 0)
    return gather_queries(kept, draw_key_octets<kTiles>(dropout, query, key, lane), lane);
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

// ---- decisions by a warp's rows of a warpgroup's accumulators, for wgmma; s is a multiple of 8

/// Ties a word to its place in the program, before a softmax, with whose exponentials the assembler
/// mixes the drawing: the compiler would compute it where it is used, after them.
__device__ __forceinline__ void pin(std::uint32_t& word) {
  asm volatile("" : "+r"(word)::"memory");
}

/// The decisions of a warp's 16 queries x (8 kTiles) keys, queries as rows.
template <int kTiles>
struct KeptKeys {
  static_assert(kTiles % 8 == 0);
  /// Of eight tiles and rows 8 * half on, even and odd tiles apart: bit 7 of byte j is that of the
  /// second element of tile 2 j or 2 j + 1.
  std::uint32_t words[kTiles / 8][2][2];

  __device__ __forceinline__ void draw(const HeadDropout& dropout, int query, int key, int lane) {
#pragma unroll
    for (int part = 0; part < kTiles / 8; ++part) {
      const std::uint32_t own = draw_query_octets<8>(dropout, query, key + 64 * part, lane);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          std::uint32_t& word = words[part][half][odd];
          word = __shfl_sync(~0u, own, forward_source(lane, 2 * half, odd))
                 << (7 - forward_bit(lane, 1));
          pin(word);
        }
      }
    }
  }

  /// A mask of this thread's two elements of tile `tile` and half `half`, packed in one word: all
  /// bits of those that are kept.
  __device__ __forceinline__ std::uint32_t mask(int tile, int half) const {
    const std::uint32_t second = words[tile / 8][half][tile % 2], first = second << 1;
    // Bytes of copies of their sign bits.
    const std::uint32_t byte = 8 + tile % 8 / 2;
    std::uint32_t mask;
    asm("prmt.b32 %0, %1, %2, %3;"
        : "=r"(mask)
        : "r"(first), "r"(second), "r"(byte * 0x11 + (byte + 4) * 0x1100));
    return mask;
  }
};

/// The decisions of a warp's 16 keys x (8 kTiles) queries, keys as rows.
template <int kTiles>
struct KeptQueries {
  static_assert(kTiles % 8 == 0);
  std::uint32_t words[kTiles / 8][4];  ///< of eight tiles: bit 4 n of words[e] is that of tile n

  __device__ __forceinline__ void draw(const HeadDropout& dropout, int query, int key, int lane) {
#pragma unroll
    for (int part = 0; part < kTiles / 8; ++part) {
      gather_queries(words[part], draw_key_octets<8>(dropout, query + 64 * part, key, lane), lane);
#pragma unroll
      for (std::uint32_t& word : words[part]) pin(word);
    }
  }
  /// Whether this thread's accumulator `e` is kept.
  __device__ __forceinline__ bool operator()(int e) const {
    return words[e / 32][e % 4] >> (e / 4 % 8 * 4) & 1;
  }
};

}  // namespace trireme::kernels::cuda
