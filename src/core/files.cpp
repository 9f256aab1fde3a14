#include "core/files.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>

#include "core/error.hpp"
#include "core/system/process.hpp"
#include "core/text.hpp"

namespace trireme {
namespace {

/// "; did you mean 'deck.yaml'?" for the file in the folder of `path`, which is not there, whose
/// name is nearest; "" where none is near, or the folder has too many files to look at.
std::string near_file(const std::filesystem::path& path) {
  constexpr std::size_t kMaxFiles = 1000;
  std::vector<std::string> names;
  std::error_code error;
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (names.size() == kMaxFiles) return "";
    names.push_back(entry->path().filename().string());
  }
  const std::string name = path.filename().string();
  const std::string_view found = nearest(name, {names.begin(), names.end()});
  if (found.empty()) return "";
  return "; did you mean '" + (path.parent_path() / found).string() + "'?";
}

/// A file descriptor that closes itself.
class Descriptor {
 public:
  Descriptor(const std::filesystem::path& path, int flags)
      : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {
    if (fd_ >= 0) return;
    const int error = errno;
    const bool missing = error == ENOENT && (flags & O_CREAT) == 0;
    throw IoError("cannot open '{}': {}{}", path.string(), std::strerror(error),
                  missing ? near_file(path) : "");
  }
  /// Takes over the open descriptor `fd`.
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

/// What the file of `mode` is, for messages.
const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder: name a file in it";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "something else";
}

/// Opens a regular file for reading. O_NONBLOCK keeps open() from waiting for the writer of a FIFO.
Descriptor open_regular_file(const std::filesystem::path& path) {
  Descriptor file(path, O_RDONLY | O_NONBLOCK);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0)
    throw IoError("cannot stat '{}': {}", path.string(), std::strerror(errno));
  if (!S_ISREG(status.st_mode))
    throw IoError("'{}' is not a regular file but {}", path.string(), kind_of(status.st_mode));
  return file;
}

/// Reads until the end, or until there are more than `enough` bytes.
std::string read_all(const Descriptor& file, const std::filesystem::path& path,
                     std::size_t enough) {
  std::string content;
  char buffer[1 << 16];
  while (content.size() <= enough) {
    const ssize_t got = ::read(file.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EISDIR)
      throw IoError("'{}' is a folder: name a file in it", path.string());
    if (got < 0) throw IoError("cannot read '{}': {}", path.string(), std::strerror(errno));
    if (got == 0) break;
    content.append(buffer, static_cast<std::size_t>(got));
  }
  return content;
}

/// Opens a new file at `path`; a file or symbolic link that is there is removed first.
Descriptor create_new_file(const std::filesystem::path& path) {
  // Another process may write a file of the same name between the two calls.
  constexpr int kAttempts = 3;
  for (int attempt = 1;; ++attempt) {
    ::unlink(path.c_str());
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd >= 0) return Descriptor(fd);
    const int reason = errno;
    const std::filesystem::path folder = path.parent_path();
    std::error_code ignored;
    if (reason == ENOENT && !folder.empty() && !std::filesystem::exists(folder, ignored))
      throw IoError("cannot create '{}': there is no folder '{}'", path.string(), folder.string());
    if (reason != EEXIST || attempt == kAttempts)
      throw IoError("cannot create '{}': {}", path.string(), std::strerror(reason));
  }
}

void write_and_sync(const std::filesystem::path& path, std::string_view content) {
  const Descriptor file = create_new_file(path);
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
  return read_all(Descriptor(path, O_RDONLY), path, enough);
}

std::string read_regular_file(const std::filesystem::path& path, std::size_t limit) {
  std::string content = read_all(open_regular_file(path), path, limit);
  if (content.size() > limit)
    throw IoError("'{}' is too large: more than {} are not read from such a file", path.string(),
                  human_bytes(static_cast<double>(limit)));
  return content;
}

void require_regular_file(const std::filesystem::path& path) { open_regular_file(path); }

void refuse_device(const std::filesystem::path& path) {
  std::error_code ignored;
  // /dev/stdout is a symbolic link, behind which there may be a regular file.
  const auto folder = std::filesystem::absolute(path, ignored).lexically_normal().parent_path();
  if (folder == "/dev" || std::filesystem::is_other(path, ignored))
    throw IoError("cannot write '{}': it is a device or a FIFO; name a file", path.string());
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    throw IoError("cannot write '{}': it is a folder; name a file in it", path.string());
  refuse_device(path);
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
  const Descriptor file = open_regular_file(path);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0)
    throw IoError("cannot stat '{}': {}", path.string(), std::strerror(errno));
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ == 0) return;
  void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED)
    throw IoError("cannot map '{}': {}", path.string(), std::strerror(errno));
  data_ = mapped;
  add_mapping(mapped, size_, path.string());
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!data_) return;
  remove_mapping(data_);
  ::munmap(data_, size_);
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

TemporaryFolder::TemporaryFolder(const std::string& name) {
  const char* parent = std::getenv("TMPDIR");
  std::string path =
      (std::filesystem::path(parent != nullptr && *parent != '\0' ? parent : "/tmp") /
       (name + "-XXXXXX"))
          .string();
  if (::mkdtemp(path.data()) == nullptr)
    throw IoError("cannot make the temporary folder '{}': {}", path, std::strerror(errno));
  path_ = path;
}

TemporaryFolder::TemporaryFolder(TemporaryFolder&& other) noexcept
    : path_(std::exchange(other.path_, {})) {}

TemporaryFolder& TemporaryFolder::operator=(TemporaryFolder&& other) noexcept {
  std::swap(path_, other.path_);
  return *this;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

// ---------------------------------------------------------------------------- contents

namespace {

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  constexpr std::uint32_t kPolynomial = 0x82F63B78;  // Castagnoli's, bits reversed
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? kPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}

}  // namespace

// Each step is a bijection of the state for a given word: two contents of which one word differs
// never share a hash. The multipliers are those of splitmix64 (Steele et al. 2014).
void ContentHash::mix(std::uint64_t word) {
  state_ = std::rotl(state_ ^ word * 0x9e3779b97f4a7c15u, 29) * 0xbf58476d1ce4e5b9u;
}

void ContentHash::add(const void* bytes, std::size_t size) {
  const char* at = static_cast<const char*>(bytes);
  std::uint64_t word = 0;
  std::size_t left = size;
  for (; left >= sizeof word; left -= sizeof word, at += sizeof word) {
    std::memcpy(&word, at, sizeof word);
    mix(word);
  }
  word = 0;
  if (left > 0) std::memcpy(&word, at, left);
  mix(word);
  mix(size);
}

std::uint64_t ContentHash::value() const {
  std::uint64_t hash = state_;
  hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9u;
  hash = (hash ^ hash >> 27) * 0x94d049bb133111ebu;
  return hash ^ hash >> 31;
}

std::uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<std::uint32_t, 256> kTable = make_crc_table();
  std::uint32_t crc = 0xFFFFFFFFu;
  for (const char byte : bytes)
    crc = crc >> 8 ^ kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xFF];
  return ~crc;
}

std::uint32_t masked_crc32c(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xA282EAD8u;
}

}  // namespace trireme
