// A file in memory, for libraries that can only write to files.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/part_file.hpp"

namespace trireme::checkpoint {

/// A sparse file without a name in any folder, gone with this object: only the pages that are
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
  /// Gives `file` the size and the written parts of this one. Throws IoError.
  void copy_to(PartFile& file) const;

 private:
  int fd_;
};

}  // namespace trireme::checkpoint
