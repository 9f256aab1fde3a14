// Dropout masks, drawn many elements at a time.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "core/philox.hpp"
#include "kernels/dropout.hpp"
#include "kernels/host/compute.hpp"

namespace trireme::kernels::host {

/// The random numbers of one site for one sample of a micro-batch.
inline DropoutStream stream_of(const Dropout& dropout, std::int64_t sample_in_batch) {
  return {.seed = dropout.seed,
          .sample = dropout.first_sample + static_cast<std::uint64_t>(sample_in_batch),
          .layer = dropout.layer,
          .site = dropout.site};
}

/// Writes the factors of elements first .. first + count - 1 to `factors`: 0 where
/// dropped(words, i), else `kept`. random.words(block) are the words of kPerBlock elements; `words`
/// are those of some blocks, and i counts elements from the first of these.
template <std::int64_t kPerBlock, typename Random, typename T, typename Dropped>
void draw_factors(const Random& random, std::uint64_t first, std::int64_t count, T kept,
                  const Dropped& dropped, T* factors) {
  constexpr std::int64_t kBlocks = 256;  // 4 KiB of words: they stay in the first cache
  while (count > 0) {
    const std::int64_t offset = first % kPerBlock;
    const std::int64_t taken = std::min<std::int64_t>(count, kPerBlock * kBlocks - offset);
    const std::int64_t blocks = (offset + taken + kPerBlock - 1) / kPerBlock;
    std::array<std::uint32_t, 4 * kBlocks> words;
    const Random local = random;
#pragma omp simd
    for (std::int64_t i = 0; i < blocks; ++i) {
      const Philox4 four = local.words(first / kPerBlock + i);
      words[4 * i] = four.x;
      words[4 * i + 1] = four.y;
      words[4 * i + 2] = four.z;
      words[4 * i + 3] = four.w;
    }
#pragma omp simd
    for (std::int64_t i = 0; i < taken; ++i)
      factors[i] = dropped(words.data(), offset + i) ? T{0} : kept;
    first += taken;
    factors += taken;
    count -= taken;
  }
}

/// The dropout mask of one site for one sample of a micro-batch.
class DropoutMask {
 public:
  DropoutMask(const Dropout& dropout, std::int64_t sample_in_batch)
      : stream_(stream_of(dropout, sample_in_batch)),
        threshold_(dropout_threshold(dropout.probability)),
        kept_(1.0 / (1.0 - dropout.probability)) {}

  /// Writes the factors of elements first .. first + count - 1 of the stream to `factors`: 0 where
  /// dropped, 1 / (1 - p) where kept.
  template <typename T>
  void draw(std::uint64_t first, std::int64_t count, T* factors) const {
    draw_factors<4>(
        stream_, first, count, static_cast<T>(kept_),
        [threshold = threshold_](const std::uint32_t* words, std::int64_t i) {
          return words[i] < threshold;
        },
        factors);
  }

 private:
  DropoutStream stream_;
  std::uint32_t threshold_;
  double kept_;
};

/// The factors of one row of h features, position `position` of sample `sample_in_batch`, in memory
/// that this thread's next call reuses.
template <typename T>
const T* draw_row(const Dropout& dropout, std::int64_t position, std::int64_t sample_in_batch,
                  std::int64_t h) {
  T* factors = scratch<T, DropoutMask>(h);
  DropoutMask(dropout, sample_in_batch).draw(position * h, h, factors);
  return factors;
}

/// Throws InternalError unless the probability lies in [0, 1).
void check_dropout(const char* op, const Dropout& dropout);

}  // namespace trireme::kernels::host
