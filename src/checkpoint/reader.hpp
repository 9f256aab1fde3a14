// Reading a checkpoint in one process, without MPI.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "core/dtype.hpp"
#include "core/shape.hpp"
#include "grid/hyperslabs.hpp"

namespace trireme::checkpoint {

/// The version that save() writes, in the attribute `format_version`. Older ones are read, newer
/// ones refused.
inline constexpr std::int64_t kFormatVersion = 1;

/// The state of a run that is not a tensor, by name.
using Attribute = std::variant<std::int64_t, double, std::string>;
using Attributes = std::map<std::string, Attribute>;

/// What a checkpoint says about one of its tensors.
struct TensorInfo {
  std::string name;
  Shape shape;
  DType dtype = DType::f32;
  std::uint64_t checksum = 0;
};

/// Everything in a checkpoint but the elements of its tensors.
struct Header {
  Attributes attributes;
  std::string deck;
  std::vector<TensorInfo> tensors;  ///< by name, numbers in names by value
  std::filesystem::path path;       ///< of the file, for messages

  /// The attribute `name` as a T (std::int64_t, double or std::string). Throws DataError that names
  /// the file when it is absent or of another type.
  template <typename T>
  const T& get(const std::string& name) const;
  /// The tensor `name`, null when there is none.
  const TensorInfo* find(const std::string& name) const;
};

/// An open checkpoint. All methods throw DataError, naming the file and the problem, when the file
/// is truncated, foreign, damaged or newer than this program, IoError when it cannot be opened at
/// all.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path);
  ~Reader();
  Reader(Reader&&) noexcept;
  Reader& operator=(Reader&&) noexcept;

  const Header& header() const { return header_; }

  /// Writes the elements of `slabs` to `data`, in that order. Does not verify the checksum.
  void read(const TensorInfo& tensor, const grid::Hyperslabs& slabs, void* data) const;
  /// Writes the whole tensor, shape.size() elements of `dtype`, to `data` and verifies its
  /// checksum. `name` must exist with exactly that type.
  void read_whole(const std::string& name, DType dtype, void* data) const;

 private:
  struct File;
  std::unique_ptr<File> file_;
  std::filesystem::path path_;
  Header header_;
};

/// The header of the checkpoint at `path`. Throws as Reader does.
Header read_header(const std::filesystem::path& path);

}  // namespace trireme::checkpoint
