// The text of each token of a continuation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "generate/generator.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::serve {

/// A token as its readers see it.
struct TokenText {
  std::string text;        ///< what it adds; "" where it only begins a character
  std::size_t offset = 0;  ///< of its text in that of the continuation, in code points
  double log_probability = 0;
  /// The most likely tokens in its place with their log-probabilities, the most likely first.
  std::vector<std::pair<std::string, double>> alternatives = {};
};

/// Gives each token of a continuation its part of the text: all parts together are the text of a
/// generate::TextStream. A character of several tokens belongs to the last of them, and what a stop
/// string cuts off to none.
class TokenTexts {
 public:
  /// `tokenizer` must outlive this.
  TokenTexts(const tokenizer::Tokenizer& tokenizer, const std::vector<std::int32_t>& prompt,
             std::vector<std::string> stop_strings = {});

  /// Takes a token. Returns the text that no later token changes, as TextStream::push.
  std::string push(const generate::ChosenToken& token);
  /// What was kept back, at the end.
  std::string finish();
  /// Whether a stop string was met.
  bool stopped() const { return stream_.stopped(); }
  /// The tokens whose text no later token changes; each once.
  std::vector<TokenText> take();

 private:
  struct Waiting {
    TokenText token;
    std::size_t end;  ///< of its text, in bytes
  };

  const tokenizer::Tokenizer& tokenizer_;
  generate::TextStream stream_;
  std::vector<std::int32_t> before_;  ///< the last tokens
  std::vector<Waiting> waiting_;
  std::size_t emitted_ = 0, taken_ = 0;  ///< bytes of the stream's text
  std::size_t offset_ = 0;               ///< taken_ in code points
};

}  // namespace trireme::serve
