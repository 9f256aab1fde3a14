#include "checkpoint/input_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>

#include "core/error.hpp"

namespace trireme::checkpoint {
namespace {

/// Parts of rows at least this long are read by calls of their own; shorter ones with what lies
/// between them, up to so many bytes in one call.
constexpr std::int64_t kRowBytes = std::int64_t{64} << 10, kStripBytes = std::int64_t{1} << 20;

}  // namespace

InputFile::InputFile(const std::filesystem::path& path)
    : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (fd_ < 0) throw IoError("cannot open '{}': {}", path.string(), std::strerror(errno));
}

InputFile::~InputFile() { ::close(fd_); }

std::int64_t InputFile::size() const { return ::lseek(fd_, 0, SEEK_END); }

void InputFile::read(void* data, std::int64_t bytes, std::int64_t offset) const {
  while (bytes > 0) {
    const ssize_t got = ::pread(fd_, data, static_cast<std::size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw IoError("cannot read '{}': {}", path_.string(), std::strerror(errno));
    if (got == 0) throw IoError("'{}' ends at byte {}", path_.string(), offset);
    data = static_cast<std::byte*>(data) + got;
    bytes -= got;
    offset += got;
  }
}

void InputFile::read(const grid::Hyperslabs& slabs, const Shape& shape, std::int64_t width,
                     std::int64_t offset, void* data) const {
  const std::int64_t columns = grid::whole_tensor(shape).columns;
  std::unique_ptr<std::byte[]> strip;
  std::byte* next = static_cast<std::byte*>(data);
  for (const grid::Hyperslab& slab : slabs) {
    const std::int64_t begin = offset + (slab.row * columns + slab.column) * width;
    const std::int64_t part = slab.columns * width, stride = columns * width;
    if (part == stride) {  // whole rows follow each other in the file
      read(next, slab.rows * stride, begin);
      next += slab.rows * stride;
      continue;
    }
    const std::int64_t at_once =
        part >= kRowBytes ? 1 : std::clamp<std::int64_t>(kStripBytes / stride, 1, slab.rows);
    if (at_once > 1 && !strip) strip = std::make_unique_for_overwrite<std::byte[]>(kStripBytes);
    for (std::int64_t row = 0; row < slab.rows; row += at_once) {
      const std::int64_t rows = std::min(at_once, slab.rows - row);
      std::byte* const from = rows > 1 ? strip.get() : next;
      read(from, (rows - 1) * stride + part, begin + row * stride);
      for (std::int64_t i = 0; rows > 1 && i < rows; ++i)
        std::memcpy(next + i * part, from + i * stride, static_cast<std::size_t>(part));
      next += rows * part;
    }
  }
}

}  // namespace trireme::checkpoint
