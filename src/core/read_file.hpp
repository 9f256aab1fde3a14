// Reading of a file that others may change meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace trireme {

/// A regular file that stays open for reading at any place. Reads are plain system calls: what
/// becomes of the file or its disk in the meantime is an IoError and not a signal.
class ReadFile {
 public:
  ReadFile() = default;
  /// Opens `path`. Throws IoError.
  explicit ReadFile(const std::filesystem::path& path);
  ReadFile(ReadFile&& other) noexcept;
  ReadFile& operator=(ReadFile&& other) noexcept;
  ~ReadFile();

  /// Bytes that it had when it was opened.
  std::size_t size() const { return size_; }
  /// Fills `buffer` with the bytes from `offset` on; `offset + bytes` is at most size(). Throws
  /// IoError that names the file when it cannot be read, or has become shorter.
  void read(std::size_t offset, void* buffer, std::size_t bytes) const;
  /// Throws IoError that names the file when its size or the time of its last change is another
  /// than when it was opened. One system call.
  void require_unchanged() const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  std::size_t size_ = 0;
  std::int64_t changed_ns_ = 0;  ///< st_mtim
};

}  // namespace trireme
