// Dropout masks, drawn where they are used.
#pragma once

#include <cstdint>

#include "core/error.hpp"
#include "core/philox.hpp"
#include "kernels/dropout.hpp"

namespace trireme::kernels::cuda {

/// Throws InternalError unless the probability lies in [0, 1).
inline void check_dropout(const char* op, const Dropout& dropout) {
  TRIREME_CHECK(dropout.probability >= 0.0 && dropout.probability < 1.0,
                "{}: dropout probability {} is not in [0, 1)", op, dropout.probability);
}

/// The keys of Philox's ten rounds, made once on the host: as kernel parameters they cost a round
/// no instruction.
struct PhiloxRounds {
  std::uint32_t low[10];
  std::uint32_t high[10];

  explicit PhiloxRounds(std::uint64_t key) {
    for (int round = 0; round < 10; ++round) {
      low[round] = static_cast<std::uint32_t>(key) + round * 0x9E3779B9u;
      high[round] = static_cast<std::uint32_t>(key >> 32) + round * 0xBB67AE85u;
    }
  }

  /// What trireme::philox(counter, key) is.
  TRIREME_HOST_DEVICE Philox4 operator()(Philox4 counter) const {
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter.x;
      const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * counter.z;
      counter = {
          static_cast<std::uint32_t>(b >> 32) ^ counter.y ^ low[round],
          static_cast<std::uint32_t>(b),
          static_cast<std::uint32_t>(a >> 32) ^ counter.w ^ high[round],
          static_cast<std::uint32_t>(a),
      };
    }
    return counter;
  }
};

/// The masks of one site for the samples of a micro-batch. Four elements cost ten rounds of Philox,
/// so an element some ten instructions.
class DropoutMask {
 public:
  explicit DropoutMask(const Dropout& dropout)
      : rounds_(dropout.seed),
        first_sample_(dropout.first_sample),
        place_(dropout.layer << 2 | static_cast<std::uint32_t>(dropout.site)),
        threshold_(dropout_threshold(dropout.probability)),
        kept_(static_cast<float>(1.0 / (1.0 - dropout.probability))),
        drops_(dropout.probability > 0.0) {}

  /// The words of elements 4 * block .. 4 * block + 3 of a sample: DropoutStream::words.
  TRIREME_HOST_DEVICE Philox4 words(std::uint32_t sample_in_batch, std::uint64_t block) const {
    const std::uint64_t sample = first_sample_ + sample_in_batch;
    return rounds_({static_cast<std::uint32_t>(block),
                    static_cast<std::uint32_t>((block >> 32) & 0xFFFF) |
                        static_cast<std::uint32_t>((sample >> 32) & 0xFFFF) << 16,
                    static_cast<std::uint32_t>(sample), place_});
  }

  /// Multiplies the values of elements first .. first + kWidth - 1 of the stream of sample
  /// `sample_in_batch` by 0 where dropped, by 1 / (1 - p) where kept. For kWidth above 1, `first`
  /// is a multiple of 4.
  template <int kWidth>
  TRIREME_HOST_DEVICE void apply(float (&values)[kWidth], std::uint32_t sample_in_batch,
                                 std::uint64_t first) const {
    static_assert(kWidth == 1 || kWidth % 4 == 0, "four elements share a draw");
    if (!drops_) return;
    if constexpr (kWidth == 1) {
      const Philox4 four = words(sample_in_batch, first / 4);
      const std::uint32_t low = first % 2 == 0 ? four.x : four.y;
      const std::uint32_t high = first % 2 == 0 ? four.z : four.w;
      values[0] *= factor(first % 4 < 2 ? low : high);
    } else {
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
      for (int i = 0; i < kWidth; i += 4) {
        const Philox4 four = words(sample_in_batch, first / 4 + i / 4);
        values[i] *= factor(four.x);
        values[i + 1] *= factor(four.y);
        values[i + 2] *= factor(four.z);
        values[i + 3] *= factor(four.w);
      }
    }
  }

 private:
  TRIREME_HOST_DEVICE float factor(std::uint32_t word) const {
    return word < threshold_ ? 0.0f : kept_;
  }

  PhiloxRounds rounds_;
  std::uint64_t first_sample_;
  std::uint32_t place_;
  std::uint32_t threshold_;
  float kept_;
  bool drops_;
};

}  // namespace trireme::kernels::cuda
