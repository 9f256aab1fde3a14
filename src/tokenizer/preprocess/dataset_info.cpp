#include "tokenizer/preprocess/dataset_info.hpp"

#include <charconv>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme::tokenizer {
namespace {

using Json = nlohmann::ordered_json;

/// The key by which the file is known, with the version of its format.
constexpr const char* kMark = "trireme_dataset";
constexpr int kVersion = 1;
constexpr std::size_t kMaxBytes = 1 << 16;  ///< the file has about 500

/// The JSON object of PREFIX.json where it has the mark.
std::optional<Json> read_marked(const std::filesystem::path& path) {
  std::error_code absent;
  if (!std::filesystem::is_regular_file(path, absent)) return std::nullopt;
  const std::string text = read_file(path, kMaxBytes);
  if (text.size() > kMaxBytes) return std::nullopt;
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains(kMark)) return std::nullopt;
  return json;
}

std::uint64_t parse_hash(const std::string& text) {
  std::uint64_t hash = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  if (error != std::errc() || end != text.data() + text.size() || text.size() != 16)
    throw DataError("'{}' is not a hash of 16 hexadecimal digits", text);
  return hash;
}

DatasetInfo parse_info(const Json& json) {
  if (json.at(kMark) != kVersion)
    throw DataError("{} is {}, this program reads {}", kMark, json.at(kMark).dump(), kVersion);
  const Json& tokenizer = json.at("tokenizer");
  DatasetInfo info{.tokenizer = {.type = tokenizer.at("type"),
                                 .hash = parse_hash(tokenizer.at("hash")),
                                 .vocab_size = tokenizer.at("vocabulary"),
                                 .library = tokenizer.value("library", std::string())},
                   .largest_id = json.at("largest_id"),
                   .documents = json.at("documents"),
                   .tokens = json.at("tokens"),
                   .options = {}};
  if (!json.contains("options")) return info;
  const Json& options = json.at("options");
  info.options = {.key = options.at("key"),
                  .append_eod = options.at("append_eod"),
                  .presplit_sentences = options.at("presplit_sentences"),
                  .keep_blank_lines = options.at("keep_blank_lines")};
  return info;
}

}  // namespace

std::filesystem::path info_path(const std::filesystem::path& prefix) {
  return prefix.string() + ".json";
}

std::string to_json(const DatasetInfo& info) {
  Json tokenizer{{"type", info.tokenizer.type},
                 {"hash", fmt::format("{:016x}", info.tokenizer.hash)},
                 {"vocabulary", info.tokenizer.vocab_size}};
  if (!info.tokenizer.library.empty()) tokenizer["library"] = info.tokenizer.library;
  Json json{{kMark, kVersion},
            {"tokenizer", tokenizer},
            {"largest_id", info.largest_id},
            {"documents", info.documents},
            {"tokens", info.tokens}};
  if (info.options)
    json["options"] = {{"key", info.options->key},
                       {"append_eod", info.options->append_eod},
                       {"presplit_sentences", info.options->presplit_sentences},
                       {"keep_blank_lines", info.options->keep_blank_lines}};
  return json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

std::optional<DatasetInfo> read_dataset_info(const std::filesystem::path& prefix) {
  const std::filesystem::path path = info_path(prefix);
  const auto json = read_marked(path);
  if (!json) return std::nullopt;
  const auto damaged = [&](const char* reason) {
    return DataError(
        "'{}' is damaged: {}; make the dataset anew with trireme-preprocess, or delete this file "
        "to read the dataset without its record",
        path.string(), reason);
  };
  try {
    return parse_info(*json);
  } catch (const DataError& error) {
    throw damaged(error.what());
  } catch (const Json::exception& error) {
    // The library's message has its own name and number before the reason.
    const std::string_view message = error.what();
    throw damaged(message.substr(std::min(message.find("] ") + 2, message.size())).data());
  }
}

void refuse_foreign_info(const std::filesystem::path& prefix) {
  const std::filesystem::path path = info_path(prefix);
  std::error_code absent;
  if (std::filesystem::exists(path, absent) && !read_marked(path))
    throw UsageError(
        "the dataset's record would replace '{}', which is another file; name another output",
        path.string());
}

}  // namespace trireme::tokenizer
