#include "checkpoint/memory_file.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <vector>

#include "core/error.hpp"

namespace trireme::checkpoint {
namespace {

std::int64_t checked(std::int64_t result, const char* call) {
  if (result < 0) throw IoError("file in memory: {}: {}", call, std::strerror(errno));
  return result;
}

/// lseek() to the next data or hole from `offset`; the end of the file where there is none.
std::int64_t seek(int fd, std::int64_t offset, int whence, std::int64_t end) {
  const off_t found = ::lseek(fd, offset, whence);
  return found < 0 && errno == ENXIO ? end : checked(found, "lseek");
}

}  // namespace

MemoryFile::MemoryFile()
    : fd_(static_cast<int>(
          checked(::memfd_create("checkpoint metadata", MFD_CLOEXEC), "memfd_create"))) {}

MemoryFile::~MemoryFile() { ::close(fd_); }

std::string MemoryFile::path() const { return "/proc/self/fd/" + std::to_string(fd_); }

void MemoryFile::copy_to(PartFile& file) const {
  const std::int64_t size = checked(::lseek(fd_, 0, SEEK_END), "lseek");
  file.resize(size);
  std::vector<std::byte> buffer(std::size_t{1} << 20);
  for (std::int64_t begin = 0; begin < size;) {
    begin = seek(fd_, begin, SEEK_DATA, size);
    const std::int64_t end = begin < size ? seek(fd_, begin, SEEK_HOLE, size) : size;
    while (begin < end) {
      const auto count =
          static_cast<std::size_t>(std::min(end - begin, static_cast<std::int64_t>(buffer.size())));
      const std::int64_t got = checked(::pread(fd_, buffer.data(), count, begin), "pread");
      TRIREME_CHECK(got > 0, "a file in memory ends at byte {} of {}", begin, size);
      file.write(buffer.data(), got, begin);
      begin += got;
    }
  }
}

}  // namespace trireme::checkpoint
