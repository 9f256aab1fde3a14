// Writing Megatron-LM's indexed datasets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tokenizer/preprocess/dataset_info.hpp"

namespace trireme::tokenizer {

/// A new file that gets its name only when it is complete: written beside it as `<path>.part`,
/// which is locked against other programs until then.
class PartFile {
 public:
  /// Creates the part. Throws IoError, also when another program is writing it.
  explicit PartFile(std::filesystem::path path);
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;
  /// Removes the part unless it was published.
  ~PartFile();

  /// Appends bytes. Throws IoError.
  void write(const void* data, std::size_t bytes);

  /// Flushes to the disk. Throws IoError.
  void sync();

  /// Gives the synced part its name, replacing what had it. Throws IoError.
  void publish();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::filesystem::path path_;
  std::filesystem::path part_;
  std::unique_ptr<std::FILE, Close> file_;
};

/// What one element of a dataset is: its code in the .idx header, and its bytes.
struct ElementType {
  std::uint8_t code = 0;
  std::size_t bytes = 0;
};

/// Writes `<prefix>.bin` and `<prefix>.idx` byte for byte as Megatron-LM's IndexedDatasetBuilder.
/// Neither name is touched before finish(); a writer destroyed without it leaves no trace.
class DatasetWriter {
 public:
  /// Ids are stored in 16 bits when vocab_size < 65500 (Megatron's limit), else in 32. Makes the
  /// folder if need be. Throws IoError, and as refuse_foreign_info().
  DatasetWriter(const std::filesystem::path& prefix, std::int32_t vocab_size);

  /// Elements are of `type`. Throws the same.
  DatasetWriter(const std::filesystem::path& prefix, ElementType type);

  /// Appends a sequence of ids to the document under way. Only for a writer that was made with a
  /// vocabulary. Throws as add_elements().
  void add_sequence(std::span<const std::int32_t> ids);

  /// Appends a sequence of whole elements to the document under way. Throws IoError, and DataError
  /// when there are 2^31 of them or more.
  void add_elements(std::span<const std::byte> elements);

  /// Ends the document under way, which may have no sequence.
  void end_document() { document_indices_.push_back(static_cast<std::int64_t>(lengths_.size())); }

  /// Appends a document of one sequence; without ids it is a document of no sequence. Throws as
  /// add_elements().
  void add_document(std::span<const std::int32_t> ids);

  /// The largest id that add_sequence() has written; -1 before the first.
  std::int32_t largest_id() const { return largest_id_; }

  /// Syncs and publishes the files, the index last: a dataset that has one is whole. Writes `info`
  /// as PREFIX.json; without it removes that of an older dataset. Throws IoError.
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
