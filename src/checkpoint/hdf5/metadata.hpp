// A thin layer over HDF5's C interface (owning handles, exceptions with the text of HDF5's error
// stack, hyperslab selections), and the HDF5 structure of a checkpoint.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "checkpoint/elements.hpp"
#include "checkpoint/file.hpp"
#include "core/tensor.hpp"
#include "grid/layout.hpp"

namespace trireme::checkpoint::hdf5 {

/// A failed HDF5 call, with the texts of HDF5's error stack. Callers turn it into an Error that
/// names the file.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Returns `result` unless it is negative, HDF5's sign of failure; then throws Failure.
template <typename Result>
Result checked(Result result, const char* call);
#define TRIREME_HDF5(function, ...) \
  ::trireme::checkpoint::hdf5::checked(function(__VA_ARGS__), #function)

/// Exclusive use of HDF5, which two threads must not call at once unless it was built for threads,
/// as few are. As long as it lives no other thread can have one; HDF5 prints no error stacks. Every
/// function that calls HDF5 by itself begins with one; they do not nest.
class Lock {
 public:
  Lock();

 private:
  std::unique_lock<std::mutex> lock_;
};

/// Owns an HDF5 identifier.
class Handle {
 public:
  using Close = herr_t (*)(hid_t);
  Handle() = default;
  /// Takes over `id`, the result of `call`; throws Failure when it is negative.
  Handle(hid_t id, Close close, const char* call) : id_(checked(id, call)), close_(close) {}
  Handle(Handle&& other) noexcept;
  Handle& operator=(Handle&& other) noexcept;
  ~Handle();

  hid_t get() const { return id_; }
  /// Closes now; throws Failure when that fails.
  void close();

 private:
  hid_t id_ = H5I_INVALID_HID;
  Close close_ = nullptr;
};
#define TRIREME_HDF5_OPEN(close, function, ...) \
  ::trireme::checkpoint::hdf5::Handle(function(__VA_ARGS__), close, #function)

/// File access properties: checksummed metadata (HDF5 1.8 format), and no file locks: some cluster
/// file systems lack them, and a published file never changes.
Handle file_access();

/// The type of elements in the file, little-endian IEEE, and in memory.
hid_t file_type(DType dtype);
hid_t memory_type(DType dtype);

/// A dataspace of `shape`.
Handle space_of(const Shape& shape);

/// Selects `slabs` in `space`, which has the extents of `shape`; nothing when there are none.
void select(hid_t space, const Shape& shape, const grid::Hyperslabs& slabs);

/// A string type of fixed length, UTF-8, padded with zeros.
Handle string_type(std::size_t length);

}  // namespace trireme::checkpoint::hdf5

// How one rank writes the HDF5 structure of a checkpoint: to a sparse file in memory, which is then
// copied without the elements.

namespace trireme::checkpoint {

/// A sparse file in memory (memfd) that lives as long as this object: only the pages that are
/// written take memory.
class MemoryFile {
 public:
  /// Throws IoError.
  MemoryFile();
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  /// A path under which this process, and no other, can open it.
  std::string path() const;
  std::int64_t size() const;
  /// Reads `bytes` at `offset`. Throws IoError.
  void read(void* data, std::int64_t bytes, std::int64_t offset) const;
  /// Gives `file` the size and the written parts of this one but for the bytes of `kept`. Throws
  /// IoError.
  void copy_to(PartFile& file, std::vector<ElementRange> kept = {}) const;
  /// Frees the memory of the whole pages in these bytes, which read as zeros from then on. Throws
  /// IoError.
  void free(std::int64_t offset, std::int64_t bytes);

 private:
  int fd_;
};

/// How the dataset of a tensor stores its elements.
struct DatasetMaker {
  std::function<void(hid_t creation, const LocalTensor&)> set_storage;  ///< creation properties
  std::function<void(hid_t dataset, std::size_t tensor)> created;       ///< before it is closed
};

/// Writes everything but the elements of `tensors` to the file at `path`, which is created or
/// replaced. Throws hdf5::Failure.
void write_hdf5(const std::string& path, const Attributes& attributes, const std::string& deck,
                const std::vector<LocalTensor>& tensors,
                const std::vector<std::uint64_t>& checksums, const DatasetMaker& maker);

/// Appends the checksum of the structure in `memory`, which is all bytes but `elements`, to its
/// copy `file`. Throws IoError.
void append_trailer(PartFile& file, const MemoryFile& memory, std::vector<ElementRange> elements);

}  // namespace trireme::checkpoint
