// From a prompt to its continuation.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "generate/decoder.hpp"
#include "generate/sampling.hpp"

namespace trireme::generate {

/// Why a continuation ended: its document ended, it has the tokens asked for, or the model's
/// context is full.
enum class Stop { eod, tokens, context };

/// "eod", "tokens" or "context".
std::string_view name_of(Stop stop);

/// What to generate.
struct Request {
  std::int64_t tokens = 64;  ///< the most tokens to add
  Sampling sampling;
  std::int64_t vocab = 0;  ///< ids from here on are never chosen; 0: the model's vocabulary
  std::optional<std::int32_t> eod;  ///< the id that ends a document
};

/// The tokens after a prompt, without the one that ended the document.
struct Continuation {
  std::vector<std::int32_t> ids;
  Stop stop = Stop::tokens;
};

/// Continues prompts with a Decoder. The random number of a token depends on the seed, the number
/// of the sample and the token's position alone, so neither other prompts nor other samples change
/// a continuation.
class Generator {
 public:
  /// `decoder` must outlive this.
  Generator(Decoder& decoder, const Request& request);

  /// Throws DataError unless the model's context holds `prompt` and a token more, UsageError when
  /// the prompt is empty.
  void check_prompt(std::span<const std::int32_t> prompt) const;

  /// Continuation number `sample` of `prompt`. Throws as check_prompt and choose() do.
  Continuation generate(std::span<const std::int32_t> prompt, std::uint64_t sample = 0);

 private:
  Decoder& decoder_;
  Request request_;
};

}  // namespace trireme::generate
