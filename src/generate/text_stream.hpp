// The text of a continuation while its tokens come, up to a stop string.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.hpp"

namespace trireme::generate {

/// Turns tokens into text, piece by piece. The pieces together are the continuation's text: valid
/// UTF-8 without what a stop string cuts off.
class TextStream {
 public:
  /// `tokenizer` must outlive this.
  TextStream(const tokenizer::Tokenizer& tokenizer, std::vector<std::int32_t> prompt,
             std::vector<std::string> stop_strings = {});

  /// Takes a token. Returns the text that no later token changes: a part of a character, or of a
  /// stop string, is kept back. Nothing once stopped().
  std::string push(std::int32_t id);
  /// What was kept back, at the end.
  std::string finish();
  /// Whether a stop string was met.
  bool stopped() const { return stopped_; }
  /// All of the text so far, what is kept back included.
  const std::string& text() const { return text_; }

 private:
  std::size_t settled() const;
  std::string emit(std::size_t end);

  const tokenizer::Tokenizer& tokenizer_;
  std::vector<std::int32_t> prompt_, ids_;
  std::vector<std::string> stop_strings_;
  std::string text_;
  std::size_t emitted_ = 0;
  bool stopped_ = false;
};

}  // namespace trireme::generate
