// Files of torch.save(): the zip archives of PyTorch 1.6 and newer, and the older sequence of
// pickles. Files are mapped into memory; tensors are read when they are needed.
//
// Zip: `<name>/data.pkl` is the pickle, `<name>/data/<key>` the bytes of each storage, all stored
// without compression. Older: pickles of a magic number, a version, the system's description, the
// object and the list of storage keys, followed by the elements' number and bytes of each storage.
// Sources: PyTorch, torch/serialization.py; PKWARE, APPNOTE.TXT (zip64).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/torch/pickle.hpp"
#include "core/dtype.hpp"
#include "core/files.hpp"

namespace trireme::convert::torch {

/// A strided view of a storage.
struct Tensor {
  std::string storage;  ///< key in the archive
  std::optional<DType> dtype;
  std::string type;  ///< "torch.HalfStorage"
  std::int64_t offset = 0;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;

  std::int64_t elements() const;
};

/// The tensor that `value` describes; empty if it is none. Parameters count as tensors.
std::optional<Tensor> as_tensor(const Value& value);

/// A file of torch.save().
class Archive {
 public:
  /// Maps `path` and reads its pickle. Throws IoError; DataError for damaged files and for
  /// compressed archives.
  explicit Archive(const std::filesystem::path& path);
  /// The same for `length` bytes from `offset` of `path`.
  Archive(const std::filesystem::path& path, std::uint64_t offset, std::uint64_t length);

  const Value& root() const { return pickle_->root(); }
  const std::filesystem::path& path() const { return path_; }

  /// The elements of `tensor` in row-major order as fp32: exact from fp16, bf16 and fp32, rounded
  /// from fp64. Throws DataError if they are outside the storage or of another type.
  std::vector<float> read(const Tensor& tensor) const;

 private:
  void open(std::string_view bytes);
  void open_zip(std::string_view bytes);
  void open_legacy(std::string_view bytes);

  std::filesystem::path path_;
  MappedFile file_;
  std::unique_ptr<Pickle> pickle_;
  std::map<std::string, std::string_view> storages_;
};

}  // namespace trireme::convert::torch
