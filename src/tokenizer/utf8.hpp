// UTF-8: validity, repair, code points.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace trireme::tokenizer {

/// U+FFFD, which stands for bytes that are not UTF-8.
inline constexpr char32_t kReplacement = 0xFFFD;

/// One step of decoding UTF-8.
struct Utf8Step {
  std::size_t length;   ///< bytes consumed, at least 1: a character, or an invalid part
  bool valid;           ///< whether these bytes are a character
  char32_t code_point;  ///< the character; U+FFFD when not valid
};

/// Reads one character at text[position], position < text.size(). An invalid part is a "maximal
/// subpart" (Unicode 14, section 3.9), as in Python.
Utf8Step read_utf8(std::string_view text, std::size_t position);

/// Bytes of the longest valid prefix of `text`: text.size() when all of it is UTF-8.
std::size_t valid_utf8_prefix(std::string_view text);

/// `text` with every invalid part replaced by U+FFFD, like Python's decode(errors='replace').
std::string replace_invalid_utf8(std::string_view text);

/// Appends the UTF-8 bytes of `code_point`, which must be at most U+10FFFF and no surrogate.
void append_utf8(std::string& text, char32_t code_point);

}  // namespace trireme::tokenizer
