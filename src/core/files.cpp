#include "core/files.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.hpp"

namespace trireme {
namespace {

/// A file descriptor that closes itself.
class Descriptor {
 public:
  Descriptor(const std::filesystem::path& path, int flags)
      : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {
    if (fd_ < 0) throw IoError("cannot open '{}': {}", path.string(), std::strerror(errno));
  }
  Descriptor(const Descriptor&) = delete;
  ~Descriptor() { ::close(fd_); }
  int get() const { return fd_; }

 private:
  int fd_;
};

void write_and_sync(const std::filesystem::path& path, std::string_view content) {
  const Descriptor file(path, O_WRONLY | O_CREAT | O_TRUNC);
  while (!content.empty()) {
    const ssize_t put = ::write(file.get(), content.data(), content.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw IoError("cannot write '{}': {}", path.string(), std::strerror(errno));
    content.remove_prefix(static_cast<std::size_t>(put));
  }
  if (::fsync(file.get()) != 0)
    throw IoError("cannot sync '{}': {}", path.string(), std::strerror(errno));
}

}  // namespace

std::string read_file(const std::filesystem::path& path, std::size_t enough) {
  const Descriptor file(path, O_RDONLY);
  std::string content;
  char buffer[1 << 16];
  while (content.size() <= enough) {
    const ssize_t got = ::read(file.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw IoError("cannot read '{}': {}", path.string(), std::strerror(errno));
    if (got == 0) break;
    content.append(buffer, static_cast<std::size_t>(got));
  }
  return content;
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  const std::filesystem::path temporary = path.string() + ".part";
  try {
    write_and_sync(temporary, content);
    if (::rename(temporary.c_str(), path.c_str()) != 0)
      throw IoError("cannot rename '{}' to '{}': {}", temporary.string(), path.string(),
                    std::strerror(errno));
  } catch (const IoError&) {
    // A part left on a full disk would keep it full.
    ::unlink(temporary.c_str());
    throw;
  }
  sync_path(path.has_parent_path() ? path.parent_path() : std::filesystem::path("."));
}

void sync_path(const std::filesystem::path& path) {
  const Descriptor file(path, O_RDONLY);
  // Some file systems cannot sync a folder; that is not a failure of ours.
  if (::fsync(file.get()) != 0 && errno != EINVAL && errno != ENOTSUP)
    throw IoError("cannot sync '{}': {}", path.string(), std::strerror(errno));
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  const Descriptor file(path, O_RDONLY);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0)
    throw IoError("cannot stat '{}': {}", path.string(), std::strerror(errno));
  if (!S_ISREG(status.st_mode)) throw IoError("'{}' is not a regular file", path.string());
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ == 0) return;
  void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED)
    throw IoError("cannot map '{}': {}", path.string(), std::strerror(errno));
  data_ = mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(data_, size_);
}

std::string human_bytes(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  int unit = 0;
  while (bytes >= 1024.0 && unit < 5) {
    bytes /= 1024.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, units[unit]);
}

}  // namespace trireme
