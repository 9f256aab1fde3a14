// The safetensors format: eight bytes with the length of a JSON header, the header with name, type,
// shape and place of each tensor, padded with blanks, then the elements, little-endian, row-major,
// without gaps. Source: github.com/huggingface/safetensors, README, "Format".
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/files.hpp"
#include "core/tensor.hpp"

namespace trireme::convert::huggingface {

/// The header entry of one tensor.
struct TensorEntry {
  std::string name;
  std::string dtype;  ///< "F32", "F16", "BF16", "F64", or a type that is not supported
  std::vector<std::int64_t> shape;  ///< of any rank
  std::uint64_t begin = 0;          ///< of its bytes, counted from the end of the header
  std::uint64_t end = 0;

  std::int64_t elements() const;
};

/// "[3, 4]".
std::string to_string(const std::vector<std::int64_t>& shape);

/// A file of tensors, mapped into memory.
class SafetensorsReader {
 public:
  /// Checks the whole header. Throws DataError that names the file and the tensor when it is
  /// truncated, no safetensors file, or its offsets leave gaps, overlap or do not fit the shapes;
  /// IoError when it cannot be read.
  explicit SafetensorsReader(const std::filesystem::path& path);

  /// All tensors, in the order of their bytes.
  const std::vector<TensorEntry>& entries() const { return entries_; }
  /// The tensor `name`; null when there is none.
  const TensorEntry* find(const std::string& name) const;
  /// Its elements as fp32: exact from fp16, bf16 and fp32, rounded from fp64. Throws DataError for
  /// other types.
  std::vector<float> read(const TensorEntry& entry) const;
  /// The same of the elements that follow `first`, as many as `out` has. Any number of threads may
  /// call it.
  void read(const TensorEntry& entry, std::int64_t first, std::span<float> out) const;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  MappedFile file_;
  std::size_t data_at_ = 0;
  std::vector<TensorEntry> entries_;
};

/// Writes a file of tensors, one at a time, under a temporary name; finish() publishes it. Without
/// finish() the file is removed.
class SafetensorsWriter {
 public:
  /// Name and shape of a tensor to write.
  struct Tensor {
    std::string name;
    std::vector<std::int64_t> shape;
  };

  /// Writes the header of `tensors` of `dtype`: fp32, bf16 or fp16. Throws IoError.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<Tensor> tensors,
                    DType dtype = DType::f32);
  SafetensorsWriter(const SafetensorsWriter&) = delete;

  /// Writes the elements of the next tensor, rounded to the file's type. Throws IoError;
  /// InternalError when their number is not its shape's.
  void write(std::span<const float> elements);
  /// Syncs the file and renames it. Throws IoError; InternalError when a tensor is missing.
  void finish();

 private:
  void check() const;

  /// The file under its temporary name, removed unless it was published.
  struct Unfinished {
    std::filesystem::path path;
    ~Unfinished();
  };

  std::filesystem::path path_;
  Unfinished unfinished_;  // before the stream: removed even where the header cannot be written
  std::vector<Tensor> tensors_;
  DType dtype_;
  std::size_t written_ = 0;
  std::ofstream file_;
};

// ---- the weights of a folder: model.safetensors, or model.safetensors.index.json and its files

/// Reads them, a tensor or a part of one at a time.
class WeightsReader {
 public:
  /// Opens the weights of a folder, or one .safetensors file. Throws IoError if there are none;
  /// DataError as SafetensorsReader, and where the index and the files differ.
  explicit WeightsReader(const std::filesystem::path& from);

  /// The file, or the index of the files.
  const std::filesystem::path& path() const { return path_; }
  /// The tensor `name`; null when there is none.
  const TensorEntry* find(const std::string& name) const;
  /// The file that has the tensor `name`, which must exist.
  const std::filesystem::path& file_of(const std::string& name) const;
  /// Its elements, as SafetensorsReader::read().
  std::vector<float> read(const std::string& name) const;
  void read(const std::string& name, std::int64_t first, std::span<float> out) const;
  /// All names, in order.
  std::vector<std::string> names() const;

 private:
  struct Place {
    const SafetensorsReader* file;
    const TensorEntry* entry;
  };
  std::filesystem::path path_;
  std::vector<std::unique_ptr<SafetensorsReader>> files_;
  std::map<std::string, Place> places_;
};

/// Writes them, one tensor at a time. finish() publishes the files; without it they are removed.
class WeightsWriter {
 public:
  /// As SafetensorsWriter, with files of at most `max_bytes` unless a tensor is larger.
  WeightsWriter(const std::filesystem::path& folder,
                const std::vector<SafetensorsWriter::Tensor>& tensors, DType dtype,
                std::uint64_t max_bytes);

  void write(std::span<const float> elements);
  void finish();

 private:
  std::filesystem::path folder_;
  std::vector<std::unique_ptr<SafetensorsWriter>> files_;
  std::vector<std::size_t> counts_;  ///< tensors of each file
  std::size_t file_ = 0, written_ = 0;
  std::string index_;  ///< empty for one file
};

}  // namespace trireme::convert::huggingface
