// Beam search: the most likely continuations, as far as a bounded number of partial ones shows
// them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "generate/batch_decoder.hpp"
#include "generate/generator.hpp"

namespace trireme::generate {

struct BeamOptions {
  int beams = 4;                ///< partial continuations that are kept; twice as many caches
  double length_penalty = 1.0;  ///< scores are divided by length^penalty; 0: not at all
  std::int64_t tokens = 64;     ///< maximum number of tokens to add
  std::int64_t vocab = 0;       ///< ids from here on are never chosen; 0: the model's vocabulary
  std::optional<std::int32_t> eod;  ///< the id that ends a document
};

/// A continuation and its score: the sum of its tokens' log-probabilities, the end of the document
/// included, divided by (number of these tokens)^length_penalty.
struct Beam {
  std::vector<std::int32_t> ids;  ///< without the end of the document
  double log_probability = 0.0;   ///< the sum
  double score = 0.0;
  Stop stop = Stop::tokens;
};

/// Throws DataError unless the cache holds whatever beams a search from `prompt` may keep, and as
/// BatchGenerator::check_prompt().
void check_beam_search(const BatchDecoder& decoder, std::span<const std::int32_t> prompt,
                       const BeamOptions& options);

/// The best continuations of `prompt`, at most options.beams, the best first. At each step the
/// `beams` most likely extensions of all partial continuations are kept; one that ends its document
/// is complete and takes no place. `decoder` needs 2 * beams caches, which no other work uses.
/// Throws as choose(), and before the first pass as check_beam_search().
std::vector<Beam> beam_search(BatchDecoder& decoder, std::span<const std::int32_t> prompt,
                              const BeamOptions& options);

}  // namespace trireme::generate
