// Files: reading whole ones or at any offset, durable writing, memory mapping, temporary folders.
// Contents: hashes, checksums, and how protocol buffers store values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>

namespace trireme {

/// Default limit of read_regular_file(): no script, vocabulary or tokenizer model comes near it.
inline constexpr std::size_t kMaxInputBytes = std::size_t{256} << 20;

/// The whole file as bytes; of one that has more than `enough`, as an endless device, somewhat more
/// than so many. Throws IoError that names the file and the system's reason.
std::string read_file(const std::filesystem::path& path,
                      std::size_t enough = std::numeric_limits<std::size_t>::max());

/// The whole regular file at `path` as bytes: for input files that users name, where a FIFO would
/// block and a device such as /dev/zero would never end. Throws IoError that names the file when it
/// cannot be read, is not a regular file or has more than `limit` bytes.
std::string read_regular_file(const std::filesystem::path& path,
                              std::size_t limit = kMaxInputBytes);

/// Throws IoError that names the file unless a regular file can be opened for reading at `path`:
/// for libraries that open files themselves.
void require_regular_file(const std::filesystem::path& path);

/// Writes `content` to a new file `path`.part, syncs it and renames it to `path`: a reader sees the
/// old file or the new one, never a part. A file or symbolic link that is already at `path`.part is
/// replaced, never written through. Throws IoError, also for a device, and then leaves no part.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

/// Throws IoError when `path`, which a complete file is to be renamed to, names no regular file but
/// a device, a FIFO or a socket, or anything directly in /dev: the rename would replace it, for all
/// programs of the machine.
void refuse_device(const std::filesystem::path& path);

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

/// A new folder in the system's folder for temporary files (TMPDIR, else /tmp), removed with all
/// that is in it when this object is destroyed.
class TemporaryFolder {
 public:
  /// Makes `name`-XXXXXX, with characters that make it unique. Throws IoError.
  explicit TemporaryFolder(const std::string& name);
  TemporaryFolder(TemporaryFolder&& other) noexcept;
  TemporaryFolder& operator=(TemporaryFolder&& other) noexcept;
  ~TemporaryFolder();

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;  ///< empty once it was moved from
};

// ---- contents

/// A 64-bit hash of pieces of bytes in their order, at several GB/s. It finds changes made by
/// mistake; it does not withstand an attacker.
class ContentHash {
 public:
  /// Adds one piece; its size counts, so that ("ab", "c") and ("a", "bc") differ.
  void add(const void* bytes, std::size_t size);
  void add(std::string_view text) { add(text.data(), text.size()); }

  /// The hash of all pieces so far.
  std::uint64_t value() const;

 private:
  void mix(std::uint64_t word);

  std::uint64_t state_ = 0x243f6a8885a308d3;  // the fraction of pi
};

/// CRC-32C (Castagnoli) of `bytes`, as RFC 3720 has it.
std::uint32_t crc32c(std::string_view bytes);

/// The checksum in TensorFlow's record files: crc32c(), masked so that a checksum of data with
/// checksums in it stays a good one.
std::uint32_t masked_crc32c(std::string_view bytes);

/// How a protocol buffer stores the value of a field: the low three bits of the field's key.
enum class WireType { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

}  // namespace trireme
