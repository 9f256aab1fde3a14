#include "evaluate/detokenize.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "tokenizer/utf8.hpp"

namespace trireme::evaluate {
namespace {

using Replacement = std::pair<std::string_view, std::string_view>;

/// Whether Python's str.isspace() holds.
bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

/// Removes the white space next to a pair of brackets or quotes: re.sub of open \s*([^close]*?)\s*
/// close.
std::string strip_within(const std::string& text, char open, char close) {
  std::string out;
  std::size_t begin = 0;
  while (true) {
    const std::size_t first = text.find(open, begin);
    const std::size_t last =
        first == std::string::npos ? std::string::npos : text.find(close, first + 1);
    if (last == std::string::npos) return out.append(text, begin);
    const std::string_view inner(text.data() + first + 1, last - first - 1);
    out.append(text, begin, first + 1 - begin).append(strip_space(inner)).push_back(close);
    begin = last + 1;
  }
}

}  // namespace

std::string replace_all(const std::string& text, std::string_view from, std::string_view to) {
  std::string out;
  std::size_t begin = 0;
  for (std::size_t at; (at = text.find(from, begin)) != std::string::npos;) {
    out.append(text, begin, at - begin).append(to);
    begin = at + from.size();
  }
  return out.append(text, begin);
}

std::string_view strip_space(std::string_view text) {
  std::size_t begin = text.size(), end = 0;
  for (std::size_t at = 0; at < text.size();) {
    const tokenizer::Utf8Step step = tokenizer::read_utf8(text, at);
    if (!is_space(step.code_point)) {
      begin = std::min(begin, at);
      end = at + step.length;
    }
    at += step.length;
  }
  return begin < end ? text.substr(begin, end - begin) : std::string_view();
}

std::size_t last_word(std::string_view text) {
  std::size_t word = 0;
  for (std::size_t at = 0; at < text.size();) {
    const tokenizer::Utf8Step step = tokenizer::read_utf8(text, at);
    at += step.length;
    if (is_space(step.code_point)) word = at;
  }
  return word;
}

std::string detokenize_wikitext(std::string text) {
  // Megatron-LM's second rule, re.sub(r"/' [0-9]/", ...), has no effect on any text without
  // slashes around a quoted digit: it was meant for another regular-expression syntax.
  for (const Replacement& each : {Replacement{"s '", "s'"},
                                  {" @-@ ", "-"},
                                  {" @,@ ", ","},
                                  {" @.@ ", "."},
                                  {" : ", ": "},
                                  {" ; ", "; "},
                                  {" . ", ". "},
                                  {" ! ", "! "},
                                  {" ? ", "? "},
                                  {" , ", ", "}})
    text = replace_all(text, each.first, each.second);
  for (const auto& [open, close] :
       {std::pair{'(', ')'}, {'[', ']'}, {'{', '}'}, {'"', '"'}, {'\'', '\''}})
    text = strip_within(text, open, close);
  for (const Replacement& each : {Replacement{"= = = =", "===="},
                                  {"= = =", "==="},
                                  {"= =", "=="},
                                  {" \xC2\xB0 ", "\xC2\xB0"},
                                  {" \n", "\n"},
                                  {"\n ", "\n"},
                                  {" N ", " 1 "},
                                  {" 's", "'s"}})
    text = replace_all(text, each.first, each.second);
  return text;
}

std::string detokenize_ptb(std::string text) {
  for (const Replacement& each : {Replacement{" '", "'"},
                                  {" \n", "\n"},
                                  {"\n ", "\n"},
                                  {" n't", "n't"},
                                  {" N ", "1 "},
                                  {"$ 1", "$1"},
                                  {"# 1", "#1"}})
    text = replace_all(text, each.first, each.second);
  return text;
}

std::string detokenize(std::string text, const std::filesystem::path& path) {
  const bool ptb = path.string().find("ptb") != std::string::npos;
  return ptb ? detokenize_ptb(std::move(text)) : detokenize_wikitext(std::move(text));
}

std::int64_t count_words(std::string_view text) {
  const std::string_view words = strip_space(text);
  return std::ranges::count(words, ' ') + 1;
}

}  // namespace trireme::evaluate
