#include "convert/huggingface/format.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/error.hpp"
#include "core/files.hpp"
#include "deck/value.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::convert::huggingface {

ConfigReader::ConfigReader(const std::filesystem::path& path)
    : file_(path.string()),
      json_(nlohmann::json::parse(read_file(path), nullptr, /*allow_exceptions=*/false)) {
  if (!json_.is_object()) throw DataError("'{}' is not a JSON object", file_);
}

const nlohmann::json& ConfigReader::operator[](const char* key) const {
  static const nlohmann::json null;
  const auto found = json_.find(key);
  return found == json_.end() ? null : *found;
}

std::int64_t ConfigReader::size(const char* key) const {
  const nlohmann::json& value = (*this)[key];
  if (!value.is_number_integer() || value.get<std::int64_t>() < 1 ||
      value.get<std::int64_t>() > std::numeric_limits<std::int32_t>::max())
    throw DataError("'{}': \"{}\" is missing or no size", file_, key);
  return value.get<std::int64_t>();
}

std::int64_t ConfigReader::size(const char* key, std::int64_t fallback) const {
  return (*this)[key].is_null() ? fallback : size(key);
}

double ConfigReader::number(const char* key, double fallback) const {
  const nlohmann::json& value = (*this)[key];
  if (value.is_null()) return fallback;
  if (!value.is_number()) throw DataError("'{}': \"{}\" is no number", file_, key);
  return value.get<double>();
}

bool ConfigReader::flag(const char* key, bool fallback) const {
  const nlohmann::json& value = (*this)[key];
  if (value.is_null()) return fallback;
  if (!value.is_boolean()) throw DataError("'{}': \"{}\" is not true or false", file_, key);
  return value.get<bool>();
}

std::string ConfigReader::text(const char* key, const std::string& fallback) const {
  const nlohmann::json& value = (*this)[key];
  if (value.is_null()) return fallback;
  if (!value.is_string()) throw DataError("'{}': \"{}\" is no text", file_, key);
  return value.get<std::string>();
}

void ConfigReader::require(const char* key, std::initializer_list<nlohmann::json> values,
                           const char* why) const {
  const nlohmann::json& value = (*this)[key];
  if (value.is_null()) return;
  if (std::find(values.begin(), values.end(), value) == values.end())
    throw DataError("'{}': \"{}\" is {}; {}", file_, key, value.dump(), why);
}

const std::vector<Format>& formats() {
  static const std::vector<Format> all = {gpt2_format(), bert_format(), megatron_bert_format(),
                                          llama_format()};
  return all;
}

const char* torch_name(DType dtype) {
  return dtype == DType::bf16 ? "bfloat16" : dtype == DType::f16 ? "float16" : "float32";
}

std::vector<float> transpose(const std::vector<float>& values, std::int64_t rows,
                             std::int64_t columns) {
  // In blocks that fit into the cache.
  constexpr std::int64_t kBlock = 32;
  std::vector<float> result(values.size());
  for (std::int64_t r0 = 0; r0 < rows; r0 += kBlock)
    for (std::int64_t c0 = 0; c0 < columns; c0 += kBlock)
      for (std::int64_t r = r0; r < std::min(r0 + kBlock, rows); ++r)
        for (std::int64_t c = c0; c < std::min(c0 + kBlock, columns); ++c)
          result[static_cast<std::size_t>(c * rows + r)] =
              values[static_cast<std::size_t>(r * columns + c)];
  return result;
}

std::string path_text(const std::filesystem::path& path) {
  return deck::write_text(std::filesystem::absolute(path).string());
}

std::string tokenizer_text(const std::filesystem::path& folder, std::vector<std::string>& notes) {
  namespace fs = std::filesystem;
  const fs::path json = folder / "tokenizer.json", model = folder / "tokenizer.model";
  const fs::path vocab = folder / "vocab.json", merges = folder / "merges.txt";
  if (fs::exists(json)) try {
      tokenizer::make_tokenizer({.type = "bpe", .vocab = {}, .merges = {}, .model = json});
      return fmt::format("{{type: bpe, model: {}}}", path_text(json));
    } catch (const Error& error) {
      notes.push_back(error.what());
    }
  if (fs::exists(model)) return fmt::format("{{type: sentencepiece, model: {}}}", path_text(model));
  if (fs::exists(vocab) && fs::exists(merges))
    return fmt::format("{{type: gpt2, vocab: {}, merges: {}}}", path_text(vocab),
                       path_text(merges));
  return "";
}

}  // namespace trireme::convert::huggingface
