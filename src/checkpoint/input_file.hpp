// A file that is read at offsets, with pread(): the elements of a checkpoint's tensors go from the
// page cache to where they belong without HDF5's buffers in between.
#pragma once

#include <cstdint>
#include <filesystem>

#include "core/tensor.hpp"
#include "grid/layout.hpp"

namespace trireme::checkpoint {

/// A file open for reading. Every error is an IoError that names it and the system's reason; short
/// reads and interrupted calls are continued.
class InputFile {
 public:
  explicit InputFile(const std::filesystem::path& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  std::int64_t size() const;
  /// Throws also where the file ends before.
  void read(void* data, std::int64_t bytes, std::int64_t offset) const;
  /// Reads the elements of `slabs`, of `width` bytes each and in that order to `data`, of the
  /// tensor of `shape` whose elements begin at `offset`, row-major.
  void read(const grid::Hyperslabs& slabs, const Shape& shape, std::int64_t width,
            std::int64_t offset, void* data) const;

 private:
  const std::filesystem::path path_;
  const int fd_;
};

}  // namespace trireme::checkpoint
