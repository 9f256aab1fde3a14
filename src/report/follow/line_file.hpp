// Reading a file that a run is writing.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::report {

/// The lines of a file that grows, is cut back or is replaced, each when it is complete.
class LineFile {
 public:
  explicit LineFile(std::filesystem::path path) : path_(std::move(path)) {}

  struct News {
    /// The file is not the one, or not as long as, it was: what was read before holds no more.
    bool anew = false;
    std::vector<std::string> lines;  ///< without their newlines and returns
  };
  /// What came since the last call. A file that is not there gives nothing. Throws IoError when it
  /// cannot be read.
  News read();

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  off_t offset_ = 0;   ///< read so far
  std::string head_;   ///< the first bytes: a file that begins anew in its place has others
  std::string begun_;  ///< a line whose end has not come
};

}  // namespace trireme::report
