#include "tokenizer/preprocess/preprocess.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme::tokenizer {
namespace {

using Json = nlohmann::ordered_json;

/// The key that marks a dataset's record; its value is the version of the format.
constexpr const char* kMark = "trireme_dataset";
constexpr int kVersion = 1;
constexpr std::size_t kMaxBytes = 1 << 16;  ///< a record has about 500

/// The JSON object of PREFIX.json where it has the mark.
std::optional<Json> read_marked(const std::filesystem::path& path) {
  std::error_code absent;
  if (!std::filesystem::is_regular_file(path, absent)) return std::nullopt;
  const std::string text = read_file(path, kMaxBytes);
  if (text.size() > kMaxBytes) return std::nullopt;
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains(kMark)) return std::nullopt;
  return json;
}

std::uint64_t parse_hash(const std::string& text) {
  std::uint64_t hash = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  if (error != std::errc() || end != text.data() + text.size() || text.size() != 16)
    throw DataError("'{}' is not a hash of 16 hexadecimal digits", text);
  return hash;
}

DatasetInfo parse_info(const Json& json) {
  if (json.at(kMark) != kVersion)
    throw DataError("{} is {}, this program reads {}", kMark, json.at(kMark).dump(), kVersion);
  const Json& tokenizer = json.at("tokenizer");
  DatasetInfo info{.tokenizer = {.type = tokenizer.at("type"),
                                 .hash = parse_hash(tokenizer.at("hash")),
                                 .vocab_size = tokenizer.at("vocabulary"),
                                 .library = tokenizer.value("library", std::string())},
                   .largest_id = json.at("largest_id"),
                   .documents = json.at("documents"),
                   .tokens = json.at("tokens"),
                   .options = {}};
  if (!json.contains("options")) return info;
  const Json& options = json.at("options");
  info.options = {.key = options.at("key"),
                  .append_eod = options.at("append_eod"),
                  .presplit_sentences = options.at("presplit_sentences"),
                  .keep_blank_lines = options.at("keep_blank_lines"),
                  .split_sentences = options.value("split_sentences", std::string()),
                  .keep_newlines = options.value("keep_newlines", false)};
  return info;
}

static_assert(std::endian::native == std::endian::little, "the format is little endian");

constexpr std::int32_t kNarrowVocabulary = 65500;  // DType.optimal_dtype of Megatron-LM
constexpr ElementType kInt32 = {4, 4}, kUint16 = {8, 2};

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

std::filesystem::path with_suffix(const std::filesystem::path& prefix, const char* suffix) {
  return prefix.string() + suffix;
}

/// Whether `path` still names the open file.
bool names(const std::filesystem::path& path, int descriptor) {
  struct stat named = {}, opened = {};
  return ::stat(path.c_str(), &named) == 0 && ::fstat(descriptor, &opened) == 0 &&
         named.st_dev == opened.st_dev && named.st_ino == opened.st_ino;
}

/// Opens and locks a part without truncating it: of two processes that write the same output, the
/// second must not truncate the part of the first.
int open_part(const std::filesystem::path& part) {
  constexpr int kAttempts = 10;
  for (int attempt = 1;; ++attempt) {
    const int descriptor = ::open(part.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor < 0)
      throw IoError("cannot create '{}': {}", part.string(), std::strerror(errno));
    // On a file system without locks flock() fails with another error, which is ignored.
    const bool taken = ::flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    // Another process may have renamed the part between open() and flock(): open it again. Some
    // network file systems change inode numbers between calls: the number of attempts is limited.
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

std::filesystem::path info_path(const std::filesystem::path& prefix) {
  return prefix.string() + ".json";
}

std::string to_json(const DatasetInfo& info) {
  Json tokenizer{{"type", info.tokenizer.type},
                 {"hash", fmt::format("{:016x}", info.tokenizer.hash)},
                 {"vocabulary", info.tokenizer.vocab_size}};
  if (!info.tokenizer.library.empty()) tokenizer["library"] = info.tokenizer.library;
  Json json{{kMark, kVersion},
            {"tokenizer", tokenizer},
            {"largest_id", info.largest_id},
            {"documents", info.documents},
            {"tokens", info.tokens}};
  if (info.options) {
    json["options"] = {{"key", info.options->key},
                       {"append_eod", info.options->append_eod},
                       {"presplit_sentences", info.options->presplit_sentences},
                       {"keep_blank_lines", info.options->keep_blank_lines}};
    if (!info.options->split_sentences.empty()) {
      json["options"]["split_sentences"] = info.options->split_sentences;
      json["options"]["keep_newlines"] = info.options->keep_newlines;
    }
  }
  return json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

std::optional<DatasetInfo> read_dataset_info(const std::filesystem::path& prefix) {
  const std::filesystem::path path = info_path(prefix);
  const auto json = read_marked(path);
  if (!json) return std::nullopt;
  const auto damaged = [&](const char* reason) {
    return DataError(
        "'{}' is damaged: {}; remake the dataset with trireme-preprocess, or delete this file "
        "to read the dataset without its record",
        path.string(), reason);
  };
  try {
    return parse_info(*json);
  } catch (const DataError& error) {
    throw damaged(error.what());
  } catch (const Json::exception& error) {
    // The library's message starts with its name and an error number.
    const std::string_view message = error.what();
    throw damaged(message.substr(std::min(message.find("] ") + 2, message.size())).data());
  }
}

void refuse_foreign_info(const std::filesystem::path& prefix) {
  const std::filesystem::path path = info_path(prefix);
  std::error_code absent;
  if (std::filesystem::exists(path, absent) && !read_marked(path))
    throw UsageError(
        "the dataset's record would replace '{}', which is another file; name another output",
        path.string());
}

OutputFolder::OutputFolder(const std::filesystem::path& file) {
  refuse_device(file);
  const std::filesystem::path folder = folder_of(file);
  std::vector<std::filesystem::path> missing;
  std::error_code error;
  auto each = std::filesystem::absolute(folder).lexically_normal();
  for (; each.has_relative_path() && !std::filesystem::exists(each, error);
       each = each.parent_path())
    missing.push_back(each);
  if (std::filesystem::exists(each, error) && !std::filesystem::is_directory(each, error))
    throw IoError("cannot create folder '{}': Not a directory", folder.string());
  if (missing.empty()) return;
  if (missing.back().parent_path() == missing.back().root_path())
    throw IoError("there is no folder '{}'; make it first, or name another output",
                  missing.back().string());
  std::filesystem::create_directories(folder, error);
  if (error) throw IoError("cannot create folder '{}': {}", folder.string(), error.message());
  made_ = std::move(missing);
}

OutputFolder::~OutputFolder() {
  std::error_code in_use;
  for (const std::filesystem::path& folder : made_) std::filesystem::remove(folder, in_use);
}

PartFile::PartFile(std::filesystem::path path)
    : path_(std::move(path)),
      part_(path_.string() + ".part"),
      folder_(path_),
      file_(::fdopen(open_part(part_), "wb")) {
  if (!file_) throw std::bad_alloc();
  // A killed process may have left data; devices have no length (EINVAL).
  if (::ftruncate(::fileno(file_.get()), 0) != 0 && errno != EINVAL)
    throw IoError("cannot truncate '{}': {}", part_.string(), std::strerror(errno));
}

PartFile::~PartFile() {
  std::error_code ignored;
  if (!part_.empty()) std::filesystem::remove(part_, ignored);
}

void PartFile::write(const void* data, std::size_t bytes) {
  if (bytes == 0) return;  // an empty vector's data may be null
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
  // A kill between these steps must not leave an older index or record with the new tokens.
  remove_old(index_path_);
  remove_old(info_path(prefix_));
  tokens_.publish();
  if (info) write_file_atomically(info_path(prefix_), to_json(*info));
  index_.publish();
  sync_path(folder_of(index_path_));
}

void DatasetWriter::write_index() {
  constexpr char kMagic[] = "MMIDIDX\0";  // nine bytes with the literal's terminator
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
