#include "convert/shell/script.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace trireme::convert::shell {
namespace {

void check_nesting(int nesting) {
  if (nesting > kMaxNesting)
    throw DataError("brackets and quotes are nested more than {} deep", kMaxNesting);
}

// The end, one past it, of the number of at most `digits` digits at `at`.
std::size_t end_of_digits(std::string_view text, std::size_t at, std::string_view allowed,
                          std::size_t digits) {
  const std::size_t end = std::min(text.find_first_not_of(allowed, at), text.size());
  return std::min(end, at + digits);
}

}  // namespace

std::size_t end_of_mark(std::string_view text, std::size_t at) {
  return std::min(text.find(kUnknownEnd, at), text.size() - 1) + 1;
}

std::size_t end_of_quote(std::string_view text, std::size_t open, int nesting) {
  check_nesting(nesting);
  const bool escapes = text[open] == '$';
  const char quote = escapes ? '\'' : text[open];
  for (std::size_t i = open + (escapes ? 2 : 1); i < text.size(); ++i) {
    if (text[i] == quote) return i + 1;
    if (quote == '\'') {
      if (escapes && text[i] == '\\') ++i;
    } else if (text[i] == kUnknownBegin) {
      i = end_of_mark(text, i) - 1;
    } else if (text[i] == '\\') {
      ++i;
    } else if (quote == '"' && text.substr(i, 2) == "$(") {
      const std::size_t end = end_of_brackets(text, i + 1, nesting + 1);
      if (end == kNone) return kNone;
      i = end - 1;
    } else if (quote == '"' && text.substr(i, 2) == "${") {
      const std::size_t end = end_of_braces(text, i + 1, /*quoted=*/true, nesting + 1);
      if (end != kNone) i = end - 1;
    }
  }
  return kNone;
}

std::size_t end_of_braces(std::string_view text, std::size_t open, bool quoted, int nesting) {
  check_nesting(nesting);
  for (std::size_t i = open + 1; i < text.size(); ++i) {
    const char c = text[i];
    std::size_t end = i + 1;
    if (c == '}') return i + 1;
    if (c == '\\') {
      end = i + 2;
    } else if (c == kUnknownBegin) {
      end = end_of_mark(text, i);
    } else if (c == '"' || c == '`' || (c == '\'' && !quoted)) {
      end = end_of_quote(text, i, nesting + 1);
    } else if (text.substr(i, 2) == "${") {
      end = end_of_braces(text, i + 1, quoted, nesting + 1);
    } else if (text.substr(i, 2) == "$(") {
      end = end_of_brackets(text, i + 1, nesting + 1);
    }
    if (end == kNone) return kNone;
    i = end - 1;
  }
  return kNone;
}

std::string unescaped(std::string_view inside) {
  constexpr std::string_view kLetters = "abefnrtvE\\'\"?";
  constexpr std::string_view kValues = "\a\b\x1b\f\n\r\t\v\x1b\\'\"?";
  std::string text;
  for (std::size_t i = 0; i < inside.size(); ++i) {
    if (inside[i] != '\\' || i + 1 == inside.size()) {
      text += inside[i];
      continue;
    }
    const char c = inside[++i];
    const std::size_t letter = kLetters.find(c);
    const bool is_hex = c == 'x';
    const std::size_t begin = is_hex ? i + 1 : i;
    const std::size_t end = end_of_digits(
        inside, begin, is_hex ? "0123456789abcdefABCDEF" : "01234567", is_hex ? 2 : 3);
    if (letter != kNone) {
      text += kValues[letter];
    } else if (end > begin) {
      const std::string digits(inside.substr(begin, end - begin));
      text += static_cast<char>(std::stoi(digits, nullptr, is_hex ? 16 : 8));
      i = end - 1;
    } else {
      text.append({'\\', c});
    }
  }
  return text;
}

HereMark read_here_mark(std::string_view text, std::size_t& at) {
  HereMark mark;
  if (at < text.size() && text[at] == '-') {
    mark.strips_tabs = true;
    ++at;
  }
  while (at < text.size() && is_blank(text[at])) ++at;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '"' || c == '\'' || c == '\\')
      mark.expands = false;
    else if (is_name(c) || std::string_view("-_.!+:").find(c) != kNone)
      mark.word += c;
    else
      break;
  }
  return mark;
}

std::string read_here_text(std::string_view text, const HereMark& mark, std::size_t& at) {
  std::string body;
  while (at < text.size()) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    at = std::min(end + 1, text.size());
    while (mark.strips_tabs && !line.empty() && line[0] == '\t') line.remove_prefix(1);
    if (line == mark.word) break;
    body.append(line).append("\n");
  }
  return body;
}

std::size_t end_of_brackets(std::string_view text, std::size_t open, int nesting) {
  check_nesting(nesting);
  // In `(( ... ))` a `<<` shifts, and a `#` separates a base from its digits.
  const bool calculates = text.substr(open, 2) == "((";
  int depth = 0;
  bool word_begins = true;
  std::vector<HereMark> here;
  for (std::size_t i = open; i < text.size(); ++i) {
    const char c = text[i];
    const bool begins = word_begins;
    word_begins = is_blank(c) || c == '\n';
    if (c == kUnknownBegin) {
      i = end_of_mark(text, i) - 1;
    } else if (c == '\\') {
      ++i;
    } else if (c == '\'' || c == '"' || begins_escaped_quote(text, i)) {
      const std::size_t end = end_of_quote(text, i, nesting + 1);
      if (end == kNone) return kNone;
      i = end - 1;
    } else if (text.substr(i, 2) == "${") {
      const std::size_t end = end_of_braces(text, i + 1, /*quoted=*/false, nesting + 1);
      if (end != kNone) i = end - 1;
    } else if (c == '#' && begins && !calculates) {
      i = std::min(text.find('\n', i), text.size()) - 1;
    } else if (text.substr(i, 2) == "<<" && text.substr(i, 3) != "<<<" && !calculates) {
      i += 2;
      here.push_back(read_here_mark(text, i));
      --i;
    } else if (c == '\n' && !here.empty()) {
      ++i;
      for (const HereMark& mark : here) read_here_text(text, mark, i);
      here.clear();
      --i;
    } else if (i > open && !calculates && text.substr(i, 2) == "((") {
      const std::size_t end = end_of_brackets(text, i, nesting + 1);
      if (end == kNone) return kNone;
      i = end - 1;
    } else if (c == '(') {
      ++depth;
    } else if (c == ')' && --depth == 0) {
      return i + 1;
    }
  }
  return kNone;
}

std::size_t end_of_placeholder(std::string_view text, std::size_t at, bool quoted) {
  if (text[at] != '<' || at + 1 >= text.size()) return kNone;
  if (!is_name(text[at + 1]) && text[at + 1] != '/') return kNone;
  const std::size_t close = text.find_first_of("<>\n|;&$`\"'", at + 1);
  if (close == kNone || text[close] != '>') return kNone;
  const std::string_view inside = text.substr(at + 1, close - at - 1);
  // `<in >out`, `<in 2>err` and `<in>>out` are redirections.
  const std::size_t last_word = inside.find_last_of(" \t") + 1;
  const std::string_view last = inside.substr(last_word);
  const bool has_space = last_word > 0;
  const char next = close + 1 < text.size() ? text[close + 1] : ' ';
  const bool is_number = has_space && last.find_first_not_of("0123456789") == kNone;
  if (is_number || next == '>' || next == '&') return kNone;
  if (has_space) return close + 1;
  const bool glued = at == 0 || (!is_blank(text[at - 1]) && text[at - 1] != '\n');
  return !quoted && (glued || is_blank(next) || next == '\n') ? close + 1 : kNone;
}

}  // namespace trireme::convert::shell
