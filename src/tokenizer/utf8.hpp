// UTF-8: validity, repair, code points.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace trireme::tokenizer {

/// The start of some bytes, read as UTF-8.
struct Utf8Step {
  std::size_t length;   ///< bytes taken, at least 1: a character, or the invalid part to replace
  bool valid;           ///< whether those bytes are a character
  char32_t code_point;  ///< the character; U+FFFD when not valid
};

/// Reads one character at text[position], which must exist. An invalid part is as long as it could
/// still have become a character ("maximal subpart", Unicode 14, section 3.9, and Python).
Utf8Step read_utf8(std::string_view text, std::size_t position);

/// Bytes of the longest valid prefix of `text`: text.size() when all of it is UTF-8.
std::size_t valid_utf8_prefix(std::string_view text);

/// `text` with every invalid part replaced by U+FFFD, like Python's decode(errors='replace').
std::string replace_invalid_utf8(std::string_view text);

/// Appends the UTF-8 bytes of `code_point`, which must be at most U+10FFFF and no surrogate.
void append_utf8(std::string& text, char32_t code_point);

}  // namespace trireme::tokenizer
