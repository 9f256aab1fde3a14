#include "serve/token_texts.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace trireme::serve {
namespace {

/// Tokens that are decoded with an alternative, so that a blank before it is kept.
constexpr std::size_t kContextTokens = 4;
/// U+FFFD: what the start of a character decodes to.
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

void keep_last(std::vector<std::int32_t>& ids) {
  if (ids.size() > kContextTokens)
    ids.erase(ids.begin(), ids.end() - static_cast<std::ptrdiff_t>(kContextTokens));
}

/// The bytes of `text` before the start of a character at its end.
std::size_t whole_bytes(std::string_view text) {
  while (text.ends_with(kReplacement)) text.remove_suffix(kReplacement.size());
  return text.size();
}

/// UTF-8's code points in `text`.
std::size_t code_points(const std::string& text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

}  // namespace

TokenTexts::TokenTexts(const tokenizer::Tokenizer& tokenizer,
                       const std::vector<std::int32_t>& prompt,
                       std::vector<std::string> stop_strings)
    : tokenizer_(tokenizer), stream_(tokenizer, prompt, std::move(stop_strings)), before_(prompt) {
  keep_last(before_);
}

std::string TokenTexts::push(const generate::ChosenToken& token) {
  if (stopped()) return "";
  std::string piece = stream_.push(token.score.id);
  emitted_ += piece.size();
  Waiting waiting{.token = {.text = {}, .log_probability = token.score.log_probability}, .end = 0};
  for (const auto& other : token.alternatives)
    waiting.token.alternatives.emplace_back(
        generate::continuation_text(tokenizer_, before_, std::array{other.id}),
        other.log_probability);
  const std::string& text = stream_.text();
  waiting.end = std::max(stopped() ? text.size() : whole_bytes(text),
                         waiting_.empty() ? taken_ : waiting_.back().end);
  waiting_.push_back(std::move(waiting));
  before_.push_back(token.score.id);
  keep_last(before_);
  return piece;
}

std::string TokenTexts::finish() {
  std::string piece = stream_.finish();
  emitted_ += piece.size();
  if (!waiting_.empty()) waiting_.back().end = std::max(emitted_, waiting_.back().end);
  return piece;
}

std::vector<TokenText> TokenTexts::take() {
  const std::string& text = stream_.text();
  std::vector<TokenText> tokens;
  std::size_t count = 0;
  for (Waiting& each : waiting_) {
    // A stop string has cut the text off before it.
    if (stopped() && taken_ >= text.size()) {
      count = waiting_.size();
      break;
    }
    // The last one may still get the rest of the text.
    if (!stopped() &&
        (each.end > emitted_ || (emitted_ < text.size() && &each == &waiting_.back())))
      break;
    const std::size_t end = std::min(each.end, text.size());
    each.token.text = text.substr(taken_, end - taken_);
    each.token.offset = offset_;
    taken_ = end;
    offset_ += code_points(each.token.text);
    tokens.push_back(std::move(each.token));
    ++count;
  }
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(count));
  return tokens;
}

}  // namespace trireme::serve
