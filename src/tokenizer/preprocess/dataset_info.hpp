// PREFIX.json: what a dataset says of itself, beside PREFIX.bin and PREFIX.idx.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "tokenizer/tokenizer.hpp"

namespace trireme::tokenizer {

/// What a dataset records of its making.
struct DatasetInfo {
  TokenizerIdentity tokenizer;
  std::int32_t largest_id = -1;  ///< -1 when there is no token
  std::uint64_t documents = 0;
  std::uint64_t tokens = 0;
  /// The options of trireme-preprocess; not known of a merge of datasets that differ in them.
  struct Options {
    std::string key;  ///< of the text in JSON lines
    bool append_eod = false;
    bool presplit_sentences = false;
    bool keep_blank_lines = false;
    bool operator==(const Options&) const = default;
  };
  std::optional<Options> options;
};

/// PREFIX.json.
std::filesystem::path info_path(const std::filesystem::path& prefix);

/// The file's text.
std::string to_json(const DatasetInfo& info);

/// Reads PREFIX.json; nothing when there is no such file, or one that is not a dataset's, such as
/// the corpus it was made of. Throws IoError, and DataError that names the file when it is a
/// dataset's but damaged.
std::optional<DatasetInfo> read_dataset_info(const std::filesystem::path& prefix);

/// Throws UsageError when PREFIX.json is a file that is not a dataset's and would be lost.
void refuse_foreign_info(const std::filesystem::path& prefix);

}  // namespace trireme::tokenizer
