// Megatron-LM's indexed datasets: writing PREFIX.bin and PREFIX.idx, and PREFIX.json, which records
// how they were made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.hpp"

namespace trireme::tokenizer {

/// How a dataset was made.
struct DatasetInfo {
  TokenizerIdentity tokenizer;
  std::int32_t largest_id = -1;  ///< -1 without tokens
  std::uint64_t documents = 0;
  std::uint64_t tokens = 0;
  /// The options of trireme-preprocess; unset for a merge of datasets whose options differ.
  struct Options {
    std::string key;  ///< of the text in JSON lines
    bool append_eod = false;
    bool presplit_sentences = false;
    bool keep_blank_lines = false;
    std::string split_sentences = "";  ///< code of the language; "" without splitting
    bool keep_newlines = false;
    bool operator==(const Options&) const = default;
  };
  std::optional<Options> options;
};

/// PREFIX.json.
std::filesystem::path info_path(const std::filesystem::path& prefix);

/// The file's text.
std::string to_json(const DatasetInfo& info);

/// Reads PREFIX.json; nullopt when there is no such file, or when it is not a dataset's record (the
/// corpus may have this name). Throws IoError, and DataError that names a damaged record.
std::optional<DatasetInfo> read_dataset_info(const std::filesystem::path& prefix);

/// Throws UsageError when PREFIX.json is not a dataset's record: writing one would destroy it.
void refuse_foreign_info(const std::filesystem::path& prefix);

/// The folder of a file that will be written. Where it is missing it is made, with those above it;
/// folders that were made are removed again if they are empty in the end.
class OutputFolder {
 public:
  /// Makes the folder of `file`. Throws IoError, also where `file` is a device, or the folder would
  /// be a new one directly below the root of the file system: there names are mistyped.
  explicit OutputFolder(const std::filesystem::path& file);
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;
  ~OutputFolder();

 private:
  std::vector<std::filesystem::path> made_;  ///< the innermost first
};

/// A new file under the name `<path>.part`, locked against other processes, until publish() renames
/// the complete file.
class PartFile {
 public:
  /// Creates the part, and its folder where it is missing. Throws IoError, as OutputFolder, and
  /// when another process is writing the part.
  explicit PartFile(std::filesystem::path path);
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;
  /// Removes the part unless it was published.
  ~PartFile();

  /// Appends bytes. Throws IoError.
  void write(const void* data, std::size_t bytes);

  /// Flushes to the disk. Throws IoError.
  void sync();

  /// Renames the synced part to `path`, replacing an older file. Throws IoError.
  void publish();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::filesystem::path path_;
  std::filesystem::path part_;
  OutputFolder folder_;
  std::unique_ptr<std::FILE, Close> file_;
};

/// Element type of a dataset: its code in the .idx header and its size.
struct ElementType {
  std::uint8_t code = 0;
  std::size_t bytes = 0;
};

/// Writes `<prefix>.bin` and `<prefix>.idx` byte for byte as Megatron-LM's IndexedDatasetBuilder.
/// Neither name is touched before finish(); a writer destroyed without it leaves no trace.
class DatasetWriter {
 public:
  /// Ids are stored in 16 bits when vocab_size < 65500 (Megatron's limit), else in 32. Throws as
  /// PartFile and refuse_foreign_info().
  DatasetWriter(const std::filesystem::path& prefix, std::int32_t vocab_size);

  /// Elements are of `type`. Throws the same.
  DatasetWriter(const std::filesystem::path& prefix, ElementType type);

  /// Appends a sequence of ids to the current document. Only for a writer that was made with a
  /// vocabulary. Throws as add_elements().
  void add_sequence(std::span<const std::int32_t> ids);

  /// Appends a sequence of whole elements to the current document. Throws IoError, and DataError
  /// for 2^31 elements or more.
  void add_elements(std::span<const std::byte> elements);

  /// Ends the current document, which may have no sequence.
  void end_document() { document_indices_.push_back(static_cast<std::int64_t>(lengths_.size())); }

  /// Appends a document of one sequence; without ids it is a document of no sequence. Throws as
  /// add_elements().
  void add_document(std::span<const std::int32_t> ids);

  /// The largest id that add_sequence() has written; -1 before any.
  std::int32_t largest_id() const { return largest_id_; }

  /// Syncs and publishes the files, the index last: a dataset with an index is complete. Writes
  /// `info` as PREFIX.json; without `info` removes an older dataset's. Throws IoError.
  void finish(const std::optional<DatasetInfo>& info = std::nullopt);

 private:
  void write_index();

  std::filesystem::path prefix_;
  ElementType type_;
  std::filesystem::path index_path_;
  PartFile tokens_;
  PartFile index_;
  std::vector<std::uint16_t> narrowed_;
  std::int32_t largest_id_ = -1;
  std::vector<std::int32_t> lengths_;
  std::vector<std::int64_t> document_indices_ = {0};
};

}  // namespace trireme::tokenizer
