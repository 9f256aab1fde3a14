#include "convert/huggingface/format.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>
#include <vector>

#include "core/error.hpp"
#include "core/files.hpp"
#include "deck/value.hpp"
#include "plan/setup.hpp"
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

double init_std(const Source& source) {
  constexpr double kDefault = 0.02;
  const double value = source.config.number("initializer_range", kDefault);
  if (value != 0.0) return value;
  source.notes.push_back(
      fmt::format("\"initializer_range\" is 0, with which no model trains from the beginning: "
                  "model.init_std is {}; the weights are the folder's",
                  kDefault));
  return kDefault;
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
  namespace fs = std::filesystem;
  // The folder is resolved, the file's name kept: in a cache it links to a file named by a hash.
  const fs::path absolute = fs::absolute(path);
  return deck::write_text(
      (fs::weakly_canonical(absolute.parent_path()) / absolute.filename()).string());
}

std::string wordpiece_text(const std::filesystem::path& folder, std::vector<std::string>& notes) {
  namespace fs = std::filesystem;
  const fs::path vocab = folder / "vocab.txt", settings = folder / "tokenizer_config.json";
  if (!fs::exists(vocab)) return "";
  bool lowercase = true, is_known = false;
  if (fs::exists(settings)) {
    const ConfigReader config(settings);
    const nlohmann::json& value = config["do_lower_case"];
    is_known = value.is_boolean();
    if (is_known) lowercase = value.get<bool>();
  }
  if (!is_known)
    notes.emplace_back(
        "data.tokenizer.lowercase is true, the default of BertTokenizer: no tokenizer_config.json "
        "says whether the vocabulary is uncased");
  return fmt::format("{{type: wordpiece, vocab: {}, lowercase: {}}}", path_text(vocab), lowercase);
}

std::string sentencepiece_text(const std::filesystem::path& folder) {
  const std::filesystem::path model = folder / "tokenizer.model";
  if (!std::filesystem::exists(model)) return "";
  return fmt::format("{{type: sentencepiece, model: {}}}", path_text(model));
}

std::string tokenizer_text(const std::filesystem::path& folder, std::vector<std::string>& notes) {
  namespace fs = std::filesystem;
  const fs::path json = folder / "tokenizer.json";
  const fs::path vocab = folder / "vocab.json", merges = folder / "merges.txt";
  if (fs::exists(json)) try {
      tokenizer::make_tokenizer({.type = "bpe", .vocab = {}, .merges = {}, .model = json});
      return fmt::format("{{type: bpe, model: {}}}", path_text(json));
    } catch (const Error& error) {
      notes.push_back(error.what());
    }
  const std::string sentencepiece = sentencepiece_text(folder);
  if (!sentencepiece.empty()) return sentencepiece;
  if (fs::exists(vocab) && fs::exists(merges))
    return fmt::format("{{type: gpt2, vocab: {}, merges: {}}}", path_text(vocab),
                       path_text(merges));
  return wordpiece_text(folder, notes);
}

namespace {

namespace fs = std::filesystem;

/// A file of the deck's tokenizer and its name there.
struct TokenizerFile {
  fs::path from;
  const char* to;
};

/// Copies the files; returns a sentence. Nothing is left where one cannot be copied.
std::string copy_files(const std::vector<TokenizerFile>& files, const fs::path& to) {
  std::vector<std::string> names;
  for (const auto& [from, name] : files) {
    std::error_code error, ignored;
    fs::copy_file(from, to / name, fs::copy_options::overwrite_existing, error);
    if (error) {
      for (const TokenizerFile& file : files) fs::remove(to / file.to, ignored);
      return fmt::format("no tokenizer is written: '{}': {}\n", from.string(), error.message());
    }
    names.emplace_back(name);
  }
  return fmt::format("{} {} the run's\n", fmt::join(names, " and "),
                     names.size() == 1 ? "is" : "are");
}

/// Writes tokenizer_config.json unless the tokenizer's own was copied.
void write_tokenizer_config(const fs::path& to, const nlohmann::ordered_json& json) {
  const fs::path path = to / "tokenizer_config.json";
  if (!fs::exists(path)) write_file_atomically(path, json.dump(2) + "\n");
}

}  // namespace

std::optional<std::int64_t> end_of_document(const deck::Deck& deck) {
  try {
    return plan::vocabulary(deck).eod;
  } catch (const Error&) {
    return std::nullopt;  // the files are elsewhere; config.json then has null
  }
}

std::optional<std::int64_t> beginning_of_text(const deck::Deck& deck) {
  const deck::Tokenizer& keys = deck.data.tokenizer;
  if (keys.type != deck::TokenizerType::bpe) return std::nullopt;
  try {
    const ConfigReader config(fs::path(*keys.model).parent_path() / "tokenizer_config.json");
    const nlohmann::json& token = config["bos_token"];
    nlohmann::json content = token;
    if (token.is_object()) content = token.value("content", "");
    if (!content.is_string()) return std::nullopt;
    const auto ids =
        tokenizer::make_tokenizer(*plan::tokenizer_spec(deck))->encode(content.get<std::string>());
    return ids.size() == 1 ? std::optional<std::int64_t>(ids[0]) : std::nullopt;
  } catch (const Error&) {
    return std::nullopt;  // the files are elsewhere
  }
}

std::string write_tokenizer(const deck::Deck& deck, std::optional<std::int64_t> eod,
                            const fs::path& to) {
  const deck::Tokenizer& keys = deck.data.tokenizer;
  const auto type = keys.type.value_or(deck::TokenizerType::bytes);
  if (type == deck::TokenizerType::gpt2)
    return copy_files({{*keys.vocab, "vocab.json"}, {*keys.merges, "merges.txt"}}, to);
  if (type == deck::TokenizerType::sentencepiece)
    return copy_files({{*keys.model, "tokenizer.model"}}, to);
  if (type == deck::TokenizerType::wordpiece) {
    std::string text = copy_files({{*keys.vocab, "vocab.txt"}}, to);
    if (fs::exists(to / "vocab.txt"))
      write_tokenizer_config(to, {{"tokenizer_class", "BertTokenizer"},
                                  {"do_lower_case", *keys.lowercase},
                                  {"model_max_length", deck.model.positions}});
    return text;
  }
  if (type != deck::TokenizerType::bpe)
    return "no tokenizer is written: transformers has none of this kind\n";
  std::vector<TokenizerFile> files = {{*keys.model, "tokenizer.json"}};
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const fs::path path = fs::path(*keys.model).parent_path() / name;
    if (fs::exists(path)) files.push_back({path, name});
  }
  std::string text = copy_files(files, to);
  if (!fs::exists(to / "tokenizer.json")) return text;
  nlohmann::ordered_json json = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                 {"model_max_length", deck.model.positions}};
  if (eod) {
    const auto tokenizer = tokenizer::make_tokenizer(*plan::tokenizer_spec(deck));
    const std::int32_t id = static_cast<std::int32_t>(*eod);
    json["eos_token"] = tokenizer->decode(std::span(&id, 1));
  }
  write_tokenizer_config(to, json);
  return text;
}

}  // namespace trireme::convert::huggingface
