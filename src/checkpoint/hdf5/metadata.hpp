// How one rank writes the HDF5 structure of a checkpoint: to a sparse file in memory, which is then
// copied without the elements.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/checksum.hpp"
#include "checkpoint/elements.hpp"

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
