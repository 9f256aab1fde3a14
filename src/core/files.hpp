// File helpers: whole-file reading, durable writing, memory mapping.
#pragma once

#include <cstddef>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>

namespace trireme {

/// The whole file as bytes; of one that has more than `enough`, as an endless device, somewhat more
/// than so many. Throws IoError that names the file and the system's reason.
std::string read_file(const std::filesystem::path& path,
                      std::size_t enough = std::numeric_limits<std::size_t>::max());

/// Writes `content` under a temporary name beside `path`, syncs, and renames: a reader sees the old
/// file or the new one, never a part. Throws IoError, and then leaves no part.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

/// Flushes a file's or folder's data to the disk. Throws IoError.
void sync_path(const std::filesystem::path& path);

/// A read-only memory mapping of a whole file.
class MappedFile {
 public:
  MappedFile() = default;
  /// Maps `path`; an empty file gives an empty mapping. Throws IoError.
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::byte* data() const { return static_cast<const std::byte*>(data_); }
  std::size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

/// "1.5 GiB", "312 MiB", "4.0 KiB": bytes for people.
std::string human_bytes(double bytes);

}  // namespace trireme
