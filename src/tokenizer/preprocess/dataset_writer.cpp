#include "tokenizer/preprocess/dataset_writer.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>

#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme::tokenizer {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little endian");

constexpr std::int32_t kNarrowVocabulary = 65500;  // DType.optimal_dtype of Megatron-LM
constexpr ElementType kInt32 = {4, 4}, kUint16 = {8, 2};

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

std::filesystem::path with_suffix(const std::filesystem::path& prefix, const char* suffix) {
  const std::filesystem::path path = prefix.string() + suffix;
  std::error_code error;
  std::filesystem::create_directories(folder_of(path), error);
  if (error)
    throw IoError("cannot create folder '{}': {}", folder_of(path).string(), error.message());
  return path;
}

/// Whether `path` still names the open file.
bool names(const std::filesystem::path& path, int descriptor) {
  struct stat named = {}, opened = {};
  return ::stat(path.c_str(), &named) == 0 && ::fstat(descriptor, &opened) == 0 &&
         named.st_dev == opened.st_dev && named.st_ino == opened.st_ino;
}

/// Opens a part for this program alone, as it lies there. Of two programs that write the same
/// output the second would otherwise empty the part of the first.
int open_part(const std::filesystem::path& part) {
  constexpr int kAttempts = 10;
  for (int attempt = 1;; ++attempt) {
    const int descriptor = ::open(part.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor < 0)
      throw IoError("cannot create '{}': {}", part.string(), std::strerror(errno));
    // A file system without locks fails otherwise: there two programs are not told apart.
    const bool taken = ::flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    // Another program may have published it before it was locked; not so often, but there are file
    // systems that number their files anew each time.
    if (!taken && (names(part, descriptor) || attempt == kAttempts)) return descriptor;
    ::close(descriptor);
    if (taken)
      throw IoError("'{}' is being written by another program; wait for it, or name another output",
                    part.string());
  }
}

const std::filesystem::path& without_foreign_info(const std::filesystem::path& prefix) {
  refuse_foreign_info(prefix);
  return prefix;
}

void remove_old(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::remove(path, error);
  if (error) throw IoError("cannot remove '{}': {}", path.string(), error.message());
}

template <typename T>
void write_value(PartFile& file, T value) {
  file.write(&value, sizeof value);
}

template <typename T>
void write_array(PartFile& file, const std::vector<T>& values) {
  file.write(values.data(), values.size() * sizeof(T));
}

}  // namespace

PartFile::PartFile(std::filesystem::path path)
    : path_(std::move(path)),
      part_(path_.string() + ".part"),
      file_(::fdopen(open_part(part_), "wb")) {
  if (!file_) throw std::bad_alloc();
  // What a killed program left; devices have no length.
  if (::ftruncate(::fileno(file_.get()), 0) != 0 && errno != EINVAL)
    throw IoError("cannot empty '{}': {}", part_.string(), std::strerror(errno));
}

PartFile::~PartFile() {
  std::error_code ignored;
  if (!part_.empty()) std::filesystem::remove(part_, ignored);
}

void PartFile::write(const void* data, std::size_t bytes) {
  if (bytes == 0) return;  // of an empty vector, whose data is null
  if (std::fwrite(data, 1, bytes, file_.get()) != bytes)
    throw IoError("cannot write '{}': {}", part_.string(), std::strerror(errno));
}

void PartFile::sync() {
  if (std::fflush(file_.get()) != 0 || ::fsync(::fileno(file_.get())) != 0)
    throw IoError("cannot write '{}': {}", part_.string(), std::strerror(errno));
}

void PartFile::publish() {
  if (std::rename(part_.c_str(), path_.c_str()) != 0)
    throw IoError("cannot rename '{}' to '{}': {}", part_.string(), path_.string(),
                  std::strerror(errno));
  part_.clear();
}

DatasetWriter::DatasetWriter(const std::filesystem::path& prefix, std::int32_t vocab_size)
    : DatasetWriter(prefix, vocab_size < kNarrowVocabulary ? kUint16 : kInt32) {}

DatasetWriter::DatasetWriter(const std::filesystem::path& prefix, ElementType type)
    : prefix_(without_foreign_info(prefix)),
      type_(type),
      index_path_(with_suffix(prefix, ".idx")),
      tokens_(with_suffix(prefix, ".bin")),
      index_(index_path_) {}

void DatasetWriter::add_sequence(std::span<const std::int32_t> ids) {
  if (!ids.empty()) largest_id_ = std::max(largest_id_, *std::ranges::max_element(ids));
  if (type_.code == kInt32.code) return add_elements(std::as_bytes(ids));
  TRIREME_CHECK(type_.code == kUint16.code, "ids in a dataset of element code {}", type_.code);
  narrowed_.assign(ids.begin(), ids.end());
  add_elements(std::as_bytes(std::span<const std::uint16_t>(narrowed_)));
}

void DatasetWriter::add_elements(std::span<const std::byte> elements) {
  const std::size_t length = elements.size() / type_.bytes;
  if (length > std::numeric_limits<std::int32_t>::max())
    throw DataError("'{}': a document of {} tokens is too long: the format counts to 2^31 - 1",
                    index_path_.string(), length);
  tokens_.write(elements.data(), elements.size());
  lengths_.push_back(static_cast<std::int32_t>(length));
}

void DatasetWriter::add_document(std::span<const std::int32_t> ids) {
  if (!ids.empty()) add_sequence(ids);
  end_document();
}

void DatasetWriter::finish(const std::optional<DatasetInfo>& info) {
  tokens_.sync();
  write_index();
  index_.sync();
  // An older index or record must not be found beside the new tokens, should we be stopped in
  // between.
  remove_old(index_path_);
  remove_old(info_path(prefix_));
  tokens_.publish();
  if (info) write_file_atomically(info_path(prefix_), to_json(*info));
  index_.publish();
  sync_path(folder_of(index_path_));
}

void DatasetWriter::write_index() {
  constexpr char kMagic[] = "MMIDIDX\0";  // nine bytes with the literal's own zero
  index_.write(kMagic, sizeof kMagic);
  write_value(index_, std::uint64_t{1});
  write_value(index_, type_.code);
  write_value(index_, std::uint64_t{lengths_.size()});
  write_value(index_, std::uint64_t{document_indices_.size()});
  write_array(index_, lengths_);
  std::int64_t offset = 0;
  for (const std::int32_t length : lengths_) {
    write_value(index_, offset);
    offset += static_cast<std::int64_t>(length) * static_cast<std::int64_t>(type_.bytes);
  }
  write_array(index_, document_indices_);
}

}  // namespace trireme::tokenizer
