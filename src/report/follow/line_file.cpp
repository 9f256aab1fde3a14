#include "report/follow/line_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "core/error.hpp"

namespace trireme::report {
namespace {

constexpr off_t kHead = 256;

/// Closes a descriptor at the end of a scope.
struct Closer {
  int file;
  ~Closer() { ::close(file); }
};

}  // namespace

LineFile::News LineFile::read() {
  const auto fail = [&] {
    return IoError("cannot read '{}': {}", path_.string(), std::strerror(errno));
  };
  News news;
  const int file = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0 && errno == ENOENT) return news;
  if (file < 0) throw fail();
  const Closer closer{file};
  struct stat status {};
  if (::fstat(file, &status) != 0) throw fail();
  char buffer[1 << 16];
  const bool same = status.st_dev == device_ && status.st_ino == inode_ &&
                    status.st_size >= offset_ &&
                    ::pread(file, buffer, head_.size(), 0) == static_cast<ssize_t>(head_.size()) &&
                    head_ == std::string_view(buffer, head_.size());
  if (offset_ > 0 && !same) news.anew = true;
  if (!same) {
    offset_ = 0;
    begun_.clear();
    head_.clear();
  }
  device_ = status.st_dev;
  inode_ = status.st_ino;

  while (true) {
    const ssize_t got = ::pread(file, buffer, sizeof buffer, offset_);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw fail();
    if (got == 0) break;
    if (offset_ < kHead)
      head_.append(buffer, static_cast<std::size_t>(std::min<off_t>(got, kHead - offset_)));
    offset_ += got;
    begun_.append(buffer, static_cast<std::size_t>(got));
  }
  std::size_t start = 0;
  for (std::size_t end; (end = begun_.find('\n', start)) != std::string::npos; start = end + 1) {
    const std::size_t length = end - start;
    const bool carriage_return = length > 0 && begun_[end - 1] == '\r';
    news.lines.push_back(begun_.substr(start, length - (carriage_return ? 1 : 0)));
  }
  begun_.erase(0, start);
  return news;
}

}  // namespace trireme::report
