// The unfinished file of a checkpoint (.part): its disk space, its metadata, and plain pwrite() at
// known offsets for the rest.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "core/tensor.hpp"
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
  /// Returns when everything that this host has written to the file is on the disk.
  void sync();

 private:
  [[noreturn]] void fail(const char* action, int error) const;

  const std::filesystem::path path_;
  const std::function<void()> progressed_;
  std::int64_t unsynced_ = 0;  ///< bytes
  int fd_;
};

/// Creates the folder of `unfinished`, deletes the unfinished files of killed runs in it, and
/// reserves disk space for `count` files of `bytes`: `unfinished` and unfinished.2, unfinished.3,
/// ... Throws IoError.
void reserve_files(const std::filesystem::path& unfinished, std::int64_t bytes, int count = 1);

/// Allocates disk blocks for `bytes` of the file (fallocate), so that a full disk or a quota is one
/// clear error before anything is written. On file systems that do not support it, the writes
/// report it. Throws IoError.
void reserve_space(const std::filesystem::path& path, std::int64_t bytes);

/// Removes the files of reserve_files(). Throws nothing.
void remove_files(const std::filesystem::path& unfinished, int count = 1);

/// Upper bound of the bytes of a checkpoint of `tensors`.
std::int64_t max_file_bytes(const std::string& deck, const std::vector<LocalTensor>& tensors);

/// Gives `file` its size and all of a checkpoint but the elements of its tensors: attributes, the
/// deck, and every tensor with its checksum and the space for its elements. Returns the byte offset
/// of each tensor's elements, which are contiguous and row-major. Called by one rank; no MPI.
///
/// HDF5 writes to a file in memory, which is then copied: HDF5 1.10 cannot close a file whose
/// metadata met a full disk or an error, and crashes when the program ends. Throws IoError, and
/// hdf5::Failure.
std::vector<std::int64_t> write_metadata(PartFile& file, const Attributes& attributes,
                                         const std::string& deck,
                                         const std::vector<LocalTensor>& tensors,
                                         const std::vector<std::uint64_t>& checksums);

}  // namespace trireme::checkpoint
