// How a sum over sorted tokens is cut. The tokens of one row of the table form a run; chunks of a
// fixed number of tokens are summed at once, and a run may lie in several of them.
#pragma once

#include <cstdint>

#include "core/philox.hpp"

namespace trireme::kernels::cuda {

/// Where a chunk's sum of the tokens of one run goes.
enum class RunSum {
  whole,  ///< the run lies in this chunk: to the table
  head,   ///< it began in an earlier chunk: to this chunk's head
  tail,   ///< it begins here and goes on in the next chunk: to this chunk's tail
};

/// One chunk of the sorted rows of tokens, and what lies beside it.
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

  /// Whether the chunk's first run began earlier, and whether its last one goes on.
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

  /// Whether a run begins in this chunk and goes on in the next: its row then gets this chunk's
  /// tail and the heads of the chunks that follow.
  TRIREME_HOST_DEVICE bool has_tail() const {
    return continues_behind() && destination(end - 1) == RunSum::tail;
  }
};

}  // namespace trireme::kernels::cuda
