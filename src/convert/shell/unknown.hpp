// Values that a script does not tell: what the environment, the job scheduler or another program
// would have given. They stay in the text as marked words, so that a value that nothing needs never
// matters.
#pragma once

#include <string>
#include <string_view>

namespace trireme::convert::shell {

inline constexpr char kUnknownBegin = '\x01';
inline constexpr char kUnknownEnd = '\x02';

/// The mark that stands for the value of `source`, such as "$MASTER_ADDR" or "$(hostname)".
inline std::string unknown(std::string_view source) {
  std::string mark(1, kUnknownBegin);
  // A mark within a mark would end it too early.
  for (const char c : source)
    if (c != kUnknownBegin && c != kUnknownEnd) mark += c;
  return mark + kUnknownEnd;
}

/// Whether `text` has a mark.
inline bool has_unknown(std::string_view text) {
  return text.find(kUnknownBegin) != std::string_view::npos;
}

/// `text` with each mark as its source, on one line, for people.
inline std::string shown(std::string_view text) {
  std::string words;
  for (const char c : text)
    if (c != kUnknownBegin && c != kUnknownEnd)
      words += static_cast<unsigned char>(c) < ' ' || c == '\x7f' ? ' ' : c;
  return words;
}

}  // namespace trireme::convert::shell
