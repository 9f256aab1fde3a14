#include "generate/text.hpp"

#include <vector>

#include "tokenizer/utf8.hpp"

namespace trireme::generate {

std::string continuation_text(const tokenizer::Tokenizer& tokenizer,
                              std::span<const std::int32_t> prompt,
                              std::span<const std::int32_t> ids) {
  std::vector<std::int32_t> all(prompt.begin(), prompt.end());
  all.insert(all.end(), ids.begin(), ids.end());
  const std::string before = tokenizer.decode(prompt);
  const std::string text = tokenizer.decode(all);
  // A decoder that joins the last piece of the prompt with the first new one has changed it.
  const bool extends = text.starts_with(before);
  return tokenizer::replace_invalid_utf8(extends ? text.substr(before.size())
                                                 : tokenizer.decode(ids));
}

}  // namespace trireme::generate
