// Braces in words: `a{1,2}` and `{1..3}`.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "convert/shell/scan.hpp"
#include "convert/shell/script.hpp"

namespace trireme::convert::shell {
namespace {

// Limit on the words of one list.
constexpr std::size_t kMaxListWords = 1000;

// The end of the quote, escape or `$` expression at `at`; at + 1 for other characters.
std::size_t end_of_unit(std::string_view text, std::size_t at) {
  const char c = text[at];
  std::size_t end = at + 1;
  if (c == '\\')
    end = at + 2;
  else if (c == '\'' || c == '"' || c == '`' || begins_escaped_quote(text, at))
    end = end_of_quote(text, at);
  else if (text.substr(at, 2) == "${")
    end = end_of_braces(text, at + 1, /*quoted=*/false);
  else if (text.substr(at, 2) == "$(")
    end = end_of_brackets(text, at + 1);
  else if (c == kUnknownBegin)
    end = end_of_mark(text, at);
  return std::min(end, text.size());
}

// The numbers of `1..3`, or the letters of `a..c`; empty for another text.
std::vector<std::string> range_of(std::string_view inside) {
  const std::size_t dots = inside.find("..");
  if (dots == kNone || dots > 6 || inside.size() - dots > 8) return {};
  const std::string first(inside.substr(0, dots)), last(inside.substr(dots + 2));
  const auto is_number = [](const std::string& text) {
    return !text.empty() && text.find_first_not_of("0123456789") == kNone &&
           (text[0] != '0' || text.size() == 1);
  };
  const auto is_letter = [](const std::string& text) {
    return text.size() == 1 && std::islower(static_cast<unsigned char>(text[0]));
  };
  if (is_letter(first) && is_letter(last)) {
    std::vector<std::string> letters;
    const int step = first <= last ? 1 : -1;
    for (char c = first[0]; c != last[0]; c = static_cast<char>(c + step))
      letters.emplace_back(1, c);
    letters.push_back(last);
    return letters;
  }
  if (!is_number(first) || !is_number(last)) return {};
  std::vector<std::string> words;
  const int end = std::stoi(last);
  const int step = std::stoi(first) <= end ? 1 : -1;
  for (int i = std::stoi(first); words.size() <= kMaxListWords; i += step) {
    words.push_back(fmt::format("{}", i));
    if (i == end) return words;
  }
  return {};
}

// The words of the list or range whose `{` is at `open`, and its end in `end`; empty if it is none.
std::vector<std::string> list_at(std::string_view text, std::size_t open, std::size_t& end) {
  std::vector<std::string> words;
  int depth = 0;
  std::size_t begin = open + 1;
  for (std::size_t i = open; i < text.size();) {
    const char c = text[i];
    if (c == '{') ++depth;
    if (c == '}' && --depth == 0) {
      if (words.empty())
        words = range_of(text.substr(begin, i - begin));
      else
        words.emplace_back(text.substr(begin, i - begin));
      end = i + 1;
      return words;
    }
    if (c == ',' && depth == 1) {
      words.emplace_back(text.substr(begin, i - begin));
      begin = i + 1;
    }
    i = end_of_unit(text, i);
  }
  return {};
}

void expand_into(const std::string& raw, int nesting, std::vector<std::string>& words) {
  for (std::size_t i = 0; i < raw.size() && nesting < kMaxNesting; i = end_of_unit(raw, i)) {
    if (raw[i] != '{') continue;
    std::size_t end = 0;
    const std::vector<std::string> parts = list_at(raw, i, end);
    if (parts.empty() || words.size() + parts.size() > kMaxListWords) continue;
    for (const std::string& part : parts)
      expand_into(raw.substr(0, i) + part + raw.substr(end), nesting + 1, words);
    return;
  }
  words.push_back(raw);
}

}  // namespace

std::vector<std::string> expand_lists(const std::string& raw) {
  std::vector<std::string> words;
  expand_into(raw, 0, words);
  return words;
}

}  // namespace trireme::convert::shell
