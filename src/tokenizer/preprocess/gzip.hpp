// Decompression of gzip files.
#pragma once

#include <sys/types.h>
#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme::tokenizer {

/// The bytes of a file after gzip decompression; libarchive's does not verify the checksums. A file
/// that does not begin with gzip's magic bytes passes through. Members may follow each other, and
/// NULs may fill the file up, as on tapes. Any other rest is an error, which zlib's gzread()
/// ignores: it may be a member with a damaged header.
class GzipReader {
 public:
  /// Opens `input`, "-" being standard input. Throws IoError.
  explicit GzipReader(const std::string& input);
  GzipReader(const GzipReader&) = delete;
  GzipReader& operator=(const GzipReader&) = delete;
  ~GzipReader();

  /// Reads up to `bytes` bytes; 0 at the end, -1 with a reason in io_error() or data_error().
  /// Libraries in C call it: it does not throw.
  ssize_t read(char* buffer, std::size_t bytes);

  const std::string& io_error() const { return io_error_; }
  const std::string& data_error() const { return data_error_; }

 private:
  bool failed() const { return !io_error_.empty() || !data_error_.empty(); }
  /// Reads the next block where none is left. False at the end of the file and after an error.
  bool fill();
  /// From the block to the caller's buffer: a file that is not packed, or of a member.
  void copy();
  void unpack();
  /// Names the member where it is not the first.
  void set_data_error(const char* reason);

  int descriptor_;
  std::vector<Bytef> block_;  ///< of the file
  z_stream stream_ = {};      ///< its input is the rest of the block, its output the caller's
  std::optional<bool> packed_;
  bool in_member_ = false;
  std::uint64_t members_ = 0;  ///< complete ones
  std::string io_error_, data_error_;
};

}  // namespace trireme::tokenizer
