#include "core/read_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.hpp"

namespace trireme {
namespace {

std::int64_t modification_ns(const struct stat& status) {
  return std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

}  // namespace

ReadFile::ReadFile(const std::filesystem::path& path) : path_(path) {
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd_ < 0) throw IoError("cannot open '{}': {}", path.string(), std::strerror(errno));
  struct stat status {};
  const bool known = ::fstat(fd_, &status) == 0;
  const int reason = errno;
  if (!known || !S_ISREG(status.st_mode)) {
    ::close(std::exchange(fd_, -1));
    if (!known) throw IoError("cannot stat '{}': {}", path.string(), std::strerror(reason));
    throw IoError("'{}' is not a regular file", path.string());
  }
  size_ = static_cast<std::size_t>(status.st_size);
  changed_ns_ = modification_ns(status);
}

ReadFile::ReadFile(ReadFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      size_(other.size_),
      changed_ns_(other.changed_ns_) {}

ReadFile& ReadFile::operator=(ReadFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  std::swap(changed_ns_, other.changed_ns_);
  return *this;
}

ReadFile::~ReadFile() {
  if (fd_ >= 0) ::close(fd_);
}

void ReadFile::read(std::size_t offset, void* buffer, std::size_t bytes) const {
  char* at = static_cast<char*>(buffer);
  while (bytes > 0) {
    const ssize_t got = ::pread(fd_, at, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw IoError("cannot read '{}': {}", path_.string(), std::strerror(errno));
    if (got == 0)
      throw IoError("'{}' ends at byte {}: it had {} when it was opened, and has been cut since",
                    path_.string(), offset, size_);
    at += got;
    offset += static_cast<std::size_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
}

void ReadFile::require_unchanged() const {
  struct stat status {};
  if (::fstat(fd_, &status) != 0)
    throw IoError("cannot stat '{}': {}", path_.string(), std::strerror(errno));
  if (static_cast<std::size_t>(status.st_size) != size_)
    throw IoError("'{}' has {} bytes; it had {} when it was opened", path_.string(), status.st_size,
                  size_);
  if (modification_ns(status) != changed_ns_)
    throw IoError("'{}' has been written to since it was opened", path_.string());
}

}  // namespace trireme
