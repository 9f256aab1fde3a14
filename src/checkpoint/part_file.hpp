// The unfinished file of a checkpoint, as one rank writes to it: plain pwrite() at known offsets.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "core/shape.hpp"
#include "grid/hyperslabs.hpp"

namespace trireme::checkpoint {

/// An existing file open for writing. Every error is an IoError that names the file, this rank and
/// the system's reason; short writes and interrupted calls are continued.
class PartFile {
 public:
  /// `progressed` is called whenever some bytes, a few MiB at most, have been written or synced.
  PartFile(const std::filesystem::path& path, std::function<void()> progressed);
  ~PartFile();
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  /// Cuts the file off, or extends it with zeros.
  void resize(std::int64_t bytes);
  void write(const void* data, std::int64_t bytes, std::int64_t offset);
  /// Writes the elements of `slabs`, of `width` bytes each and in that order in `data`, into the
  /// tensor of `shape` whose elements begin at `offset`, row-major.
  void write(const grid::Hyperslabs& slabs, const Shape& shape, std::int64_t width,
             const void* data, std::int64_t offset);
  /// Returns when all that this host has written to the file is on the disk.
  void sync();

 private:
  [[noreturn]] void fail(const char* action, int error) const;

  const std::filesystem::path path_;
  const std::function<void()> progressed_;
  std::int64_t unsynced_ = 0;  ///< bytes
  int fd_;
};

}  // namespace trireme::checkpoint
