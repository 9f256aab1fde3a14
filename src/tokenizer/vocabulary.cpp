#include "tokenizer/vocabulary.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/content_hash.hpp"
#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme::tokenizer {

Vocabulary::Vocabulary(const std::filesystem::path& path, Format format) : path_(path) {
  const std::string content = read_regular_file(path);
  if (format == Format::json)
    read_json(content);
  else
    read_lines(content);
}

void Vocabulary::read_lines(std::string_view content) {
  if (content.starts_with('{'))
    throw DataError("{}: this is JSON; expected a vocab.txt with a token per line", path_.string());
  while (!content.empty()) {
    std::string_view line = content.substr(0, content.find('\n'));
    content.remove_prefix(std::min(content.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    const auto [first, fresh] = ids_.emplace(line, size());
    if (!fresh)
      throw DataError("{}:{}: token '{}' is also in line {}", path_.string(), size() + 1, line,
                      first->second + 1);
    tokens_.emplace_back(line);
  }
  if (tokens_.empty()) throw DataError("{}: the vocabulary is empty", path_.string());
}

void Vocabulary::read_json(const std::string& content) {
  const nlohmann::json json = nlohmann::json::parse(content, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object())
    throw DataError("{}: not a vocabulary: expected one JSON object {{\"token\": id, ...}}",
                    path_.string());
  const auto model = json.find("model");
  if (model != json.end() && model->is_object())
    throw DataError(
        "{}: this is Hugging Face's tokenizer.json, which has more than a vocabulary; give it as "
        "model to the type bpe, or the "
        "vocab.json (and for gpt2 the merges.txt) of the same model",
        path_.string());
  if (json.empty()) throw DataError("{}: the vocabulary is empty", path_.string());
  tokens_.resize(json.size());
  std::vector<bool> seen(json.size());
  for (const auto& [token, id] : json.items()) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= json.size())
      throw DataError("{}: the id of '{}' is {}; expected the whole numbers 0 to {}, each once",
                      path_.string(), token, id.dump(), json.size() - 1);
    const auto index = id.get<std::size_t>();
    if (seen[index])
      throw DataError("{}: '{}' and '{}' have the same id {}", path_.string(), tokens_[index],
                      token, index);
    seen[index] = true;
    tokens_[index] = token;
    ids_.emplace(token, static_cast<std::int32_t>(index));
  }
}

std::optional<std::int32_t> Vocabulary::find(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

std::uint64_t Vocabulary::hash() const {
  ContentHash hash;
  for (const std::string& token : tokens_) hash.add(token);
  return hash.value();
}

void check_id(std::string_view tokenizer, std::int32_t id, std::int32_t vocab_size) {
  if (id < 0 || id >= vocab_size)
    throw DataError("{} tokenizer: there is no id {}; the vocabulary has ids 0 to {}", tokenizer,
                    id, vocab_size - 1);
}

}  // namespace trireme::tokenizer
