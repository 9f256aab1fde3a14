#include "checkpoint/structure.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "core/content_hash.hpp"
#include "core/error.hpp"

namespace trireme::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kMagic = "TRIREME\n";
/// Bytes of the count, the hash and the magic.
constexpr std::int64_t kEndBytes = 24;

/// Adds the bytes [begin, end) of a file to `hash`.
void add_range(ContentHash& hash, const ReadAt& read, std::int64_t begin, std::int64_t end) {
  std::vector<char> buffer(std::min<std::int64_t>(std::max<std::int64_t>(end - begin, 0), 1 << 20));
  while (begin < end) {
    const std::int64_t bytes = std::min<std::int64_t>(end - begin, std::ssize(buffer));
    read(buffer.data(), bytes, begin);
    hash.add(buffer.data(), static_cast<std::size_t>(bytes));
    begin += bytes;
  }
}

/// The hash of an HDF5 file of `file_bytes` without `elements`, which are sorted, and of `table`,
/// the trailer up to the hash.
std::uint64_t structure_hash(const std::vector<ElementRange>& elements, std::int64_t file_bytes,
                             std::string_view table, const ReadAt& read) {
  ContentHash hash;
  std::int64_t at = 0;
  for (const ElementRange& range : elements) {
    add_range(hash, read, at, range.offset);
    at = range.offset + range.bytes;
  }
  add_range(hash, read, at, file_bytes);
  hash.add(table);
  return hash.value();
}

template <typename Number>
void append(std::string& text, Number number) {
  text.append(reinterpret_cast<const char*>(&number), sizeof number);
}

/// A file that is open for reading.
class InputFile {
 public:
  explicit InputFile(const std::filesystem::path& path)
      : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) throw IoError("cannot open '{}': {}", path.string(), std::strerror(errno));
  }
  ~InputFile() { ::close(fd_); }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  std::int64_t size() const { return ::lseek(fd_, 0, SEEK_END); }

  void read(void* data, std::int64_t bytes, std::int64_t offset) const {
    while (bytes > 0) {
      const ssize_t got = ::pread(fd_, data, static_cast<std::size_t>(bytes), offset);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw IoError("cannot read '{}': {}", path_.string(), std::strerror(errno));
      if (got == 0) throw IoError("'{}' ends at byte {}", path_.string(), offset);
      data = static_cast<char*>(data) + got;
      bytes -= got;
      offset += got;
    }
  }

 private:
  const std::filesystem::path path_;
  const int fd_;
};

[[noreturn]] void fail(const std::filesystem::path& path) {
  throw DataError(
      "'{}' is not a readable checkpoint: its structure is damaged: its checksum does not match",
      path.string());
}

/// The ranges in `table`; they must follow each other within `file_bytes`.
std::vector<ElementRange> parse_ranges(const std::string& table, std::int64_t count,
                                       std::int64_t file_bytes, const std::filesystem::path& path) {
  std::vector<ElementRange> ranges(static_cast<std::size_t>(count));
  std::memcpy(ranges.data(), table.data(), ranges.size() * sizeof ranges[0]);
  std::int64_t end = 0;
  for (const ElementRange& range : ranges) {
    if (range.offset < end || range.bytes < 0 || range.bytes > file_bytes - range.offset)
      fail(path);
    end = range.offset + range.bytes;
  }
  return ranges;
}

}  // namespace

std::string structure_trailer(std::vector<ElementRange> elements, std::int64_t file_bytes,
                              const ReadAt& read) {
  std::ranges::sort(elements, {}, &ElementRange::offset);
  std::string trailer;
  for (const ElementRange& range : elements) {
    append(trailer, range.offset);
    append(trailer, range.bytes);
  }
  append(trailer, static_cast<std::int64_t>(elements.size()));
  append(trailer, structure_hash(elements, file_bytes, trailer, read));
  return trailer.append(kMagic);
}

bool verify_structure(const std::filesystem::path& path) {
  const InputFile file(path);
  const std::int64_t size = file.size();
  if (size < kEndBytes) return false;
  struct {
    std::int64_t count;
    std::uint64_t hash;
    std::array<char, 8> magic;
  } end;
  static_assert(sizeof end == kEndBytes);
  file.read(&end, kEndBytes, size - kEndBytes);
  if (std::string_view(end.magic.data(), end.magic.size()) != kMagic) return false;
  constexpr std::int64_t kRangeBytes = sizeof(ElementRange);
  if (end.count < 0 || end.count > (size - kEndBytes) / kRangeBytes) fail(path);
  const std::int64_t file_bytes = size - kEndBytes - end.count * kRangeBytes;
  std::string table(static_cast<std::size_t>(end.count * kRangeBytes + 8), '\0');
  file.read(table.data(), std::ssize(table), file_bytes);
  const std::vector<ElementRange> elements = parse_ranges(table, end.count, file_bytes, path);
  const auto read = [&](void* data, std::int64_t bytes, std::int64_t offset) {
    file.read(data, bytes, offset);
  };
  if (structure_hash(elements, file_bytes, table, read) != end.hash) fail(path);
  return true;
}

}  // namespace trireme::checkpoint
