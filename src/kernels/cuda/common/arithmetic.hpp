// Index arithmetic of the CUDA kernels, checked on the CPU: division by constants, ranges of
// flat\nbuffers, runs of sorted tokens.
#pragma once

#include <cstdint>

#include "core/philox.hpp"
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

}  // namespace trireme::kernels::cuda
