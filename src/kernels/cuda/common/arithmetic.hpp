// Arithmetic of the CUDA kernels, checked on the CPU: division by constants, ranges of flat
// buffers, runs of sorted tokens, dropout masks.
#pragma once

#include <cstdint>

#include "core/error.hpp"
#include "core/philox.hpp"
#include "kernels/norms.hpp"
#include "kernels/optimizer.hpp"

namespace trireme::kernels::cuda {

/// Quotients of unsigned numbers below 2^31 by one divisor from 1 to 2^31, in a multiplication, an
/// addition and a shift instead of the twenty instructions of a division. Source: Granlund,
/// Montgomery, "Division by invariant integers using multiplication" (PLDI 1994), figure 4.1.
class Divisor {
 public:
  explicit Divisor(std::uint32_t divisor) : divisor_(divisor) {
    while ((std::uint64_t{1} << shift_) < divisor) ++shift_;
    multiplier_ = static_cast<std::uint32_t>(
        ((((std::uint64_t{1} << shift_) - divisor) << 32) / divisor) + 1);
  }

  /// numerator / divisor; numerator below 2^31, so that the sum does not overflow.
  TRIREME_HOST_DEVICE std::uint32_t quotient(std::uint32_t numerator) const {
    const auto high = static_cast<std::uint32_t>((std::uint64_t{numerator} * multiplier_) >> 32);
    return (high + numerator) >> shift_;
  }

  TRIREME_HOST_DEVICE std::uint32_t divisor() const { return divisor_; }

 private:
  std::uint32_t divisor_;
  std::uint32_t multiplier_ = 0;
  std::uint32_t shift_ = 0;
};

/// The number of bounds[begin .. end - 1], ascending, at or below `index`, plus `begin`.
TRIREME_HOST_DEVICE inline std::int64_t bounds_up_to(const std::int64_t* bounds, std::int64_t begin,
                                                     std::int64_t end, std::int64_t index) {
  while (begin < end) {
    const std::int64_t middle = begin + (end - begin) / 2;
    if (bounds[middle] <= index)
      begin = middle + 1;
    else
      end = middle;
  }
  return begin;
}

/// The ranges as one chunk of the buffer sees them. Most chunks lie in one range, so the
/// search over all bounds is done once a chunk and most elements need none.
class ChunkRanges {
 public:
  /// For elements begin .. end - 1 of the buffer; begin < end.
  TRIREME_HOST_DEVICE ChunkRanges(const IndexRanges& ranges, std::int64_t begin, std::int64_t end)
      : bounds_(ranges.bounds), whole_(ranges.count == 0) {
    if (whole_) return;
    first_ = bounds_up_to(bounds_, 0, ranges.count, begin);
    last_ = bounds_up_to(bounds_, first_, ranges.count, end - 1);
  }

  /// Whether one answer holds for the whole chunk.
  TRIREME_HOST_DEVICE bool uniform() const { return first_ == last_; }

  /// Whether element `index`, one of the chunk, lies inside a range.
  TRIREME_HOST_DEVICE bool contains(std::int64_t index) const {
    if (whole_) return true;
    if (uniform()) return first_ % 2 != 0;
    return bounds_up_to(bounds_, first_, last_, index) % 2 != 0;
  }

 private:
  const std::int64_t* bounds_;
  bool whole_;
  std::int64_t first_ = 0;
  std::int64_t last_ = 0;
};

/// Where a chunk's sum of the tokens of one run goes.
enum class RunSum {
  whole,  ///< the run lies in this chunk: to the table
  head,   ///< it began in an earlier chunk: to this chunk's head
  tail,   ///< it begins here and continues in the next chunk: to this chunk's tail
};

/// One chunk of the sorted rows of tokens, and its neighbours.
struct TokenChunk {
  const std::uint32_t* rows;  ///< of all `tokens`, ascending
  std::int64_t tokens;
  std::int64_t begin, end;  ///< of this chunk; begin < end

  TRIREME_HOST_DEVICE TokenChunk(const std::uint32_t* rows, std::int64_t tokens, std::int64_t chunk,
                                 std::int64_t chunk_tokens)
      : rows(rows),
        tokens(tokens),
        begin(chunk * chunk_tokens),
        end(begin + chunk_tokens < tokens ? begin + chunk_tokens : tokens) {}

  /// Whether the chunk's first run began earlier, and whether its last one continues.
  TRIREME_HOST_DEVICE bool continues_before() const {
    return begin > 0 && rows[begin - 1] == rows[begin];
  }
  TRIREME_HOST_DEVICE bool continues_behind() const {
    return end < tokens && rows[end - 1] == rows[end];
  }

  /// Whether the sum of this chunk's part of a run is complete after token i.
  TRIREME_HOST_DEVICE bool run_ends(std::int64_t i) const {
    return i + 1 == end || rows[i] != rows[i + 1];
  }

  /// Where the sum that is complete after token i goes.
  TRIREME_HOST_DEVICE RunSum destination(std::int64_t i) const {
    if (rows[i] == rows[begin] && continues_before()) return RunSum::head;
    return i + 1 == end && continues_behind() ? RunSum::tail : RunSum::whole;
  }

  /// Whether a run begins in this chunk and continues in the next: its row then gets this chunk's
  /// tail and the heads of the chunks that follow.
  TRIREME_HOST_DEVICE bool has_tail() const {
    return continues_behind() && destination(end - 1) == RunSum::tail;
  }
};

// ---- dropout masks, drawn where they are used

/// Throws InternalError unless the probability lies in [0, 1).
inline void check_dropout(const char* op, const Dropout& dropout) {
  TRIREME_CHECK(dropout.probability >= 0.0 && dropout.probability < 1.0,
                "{}: dropout probability {} is not in [0, 1)", op, dropout.probability);
}

/// The number in the run of sample `sample_in_batch` of a micro-batch, with Dropout::first_sample,
/// which is constant while kernels read it.
TRIREME_HOST_DEVICE inline std::uint64_t sample_of_run(const std::uint64_t* first_sample,
                                                       std::uint32_t sample_in_batch) {
  if (first_sample == nullptr) return sample_in_batch;
#ifdef __CUDA_ARCH__
  return __ldg(reinterpret_cast<const unsigned long long*>(first_sample)) + sample_in_batch;
#else
  return *first_sample + sample_in_batch;
#endif
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
    const std::uint64_t sample = sample_of_run(first_sample_, sample_in_batch);
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
  const std::uint64_t* first_sample_;
  std::uint32_t place_;
  std::uint32_t threshold_;
  float kept_;
  bool drops_;
};

}  // namespace trireme::kernels::cuda
