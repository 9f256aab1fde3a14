#include "convert/huggingface/tokenizer_files.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <span>
#include <system_error>
#include <vector>

#include "convert/huggingface/format.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "plan/setup.hpp"

namespace trireme::convert::huggingface {
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
