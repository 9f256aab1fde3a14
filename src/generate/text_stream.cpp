#include "generate/text_stream.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "generate/generator.hpp"

namespace trireme::generate {

TextStream::TextStream(const tokenizer::Tokenizer& tokenizer, std::vector<std::int32_t> prompt,
                       std::vector<std::string> stop_strings)
    : tokenizer_(tokenizer), prompt_(std::move(prompt)), stop_strings_(std::move(stop_strings)) {
  std::erase(stop_strings_, "");
}

std::string TextStream::push(std::int32_t id) {
  if (stopped_) return "";
  ids_.push_back(id);
  text_ = continuation_text(tokenizer_, prompt_, ids_);
  std::size_t stop = std::string::npos;
  for (const std::string& each : stop_strings_) stop = std::min(stop, text_.find(each));
  if (stop != std::string::npos) {
    stopped_ = true;
    text_.resize(stop);
    return emit(stop);
  }
  return emit(settled());
}

std::string TextStream::finish() { return emit(text_.size()); }

std::size_t TextStream::settled() const {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  std::string_view settled = text_;
  // The start of a character decodes to U+FFFD until its other bytes come.
  while (settled.ends_with(kReplacement)) settled.remove_suffix(kReplacement.size());
  std::size_t kept_back = 0;
  for (const std::string& each : stop_strings_)
    for (std::size_t size = std::min(each.size() - 1, settled.size()); size > kept_back; --size)
      if (settled.ends_with(std::string_view(each).substr(0, size))) kept_back = size;
  return settled.size() - kept_back;
}

std::string TextStream::emit(std::size_t end) {
  if (end <= emitted_) return "";
  std::string piece = text_.substr(emitted_, end - emitted_);
  emitted_ = end;
  return piece;
}

}  // namespace trireme::generate
