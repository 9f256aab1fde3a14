#include "tokenizer/preprocess/preprocess.hpp"

#include <archive.h>
#include <archive_entry.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "tokenizer/preprocess/gzip.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::tokenizer {
namespace {

constexpr std::size_t kBlockBytes = 1 << 17;
constexpr std::size_t kMaxNesting = 4;  ///< archives, the outermost counted

bool is_text(std::string_view name) {
  return name.ends_with(".txt") || name.ends_with(".json") || name.ends_with(".jsonl");
}

/// Whether a member of this name is an archive or a compressed text that can be read in place.
/// gzip cannot: libarchive does not verify its checksums.
bool is_packed(std::string_view name) {
  for (const std::string_view ending : {".tar", ".bz2", ".xz", ".zst", ".tbz2", ".txz"})
    if (name.ends_with(ending)) return true;
  return false;
}

}  // namespace

std::string without_compression_suffix(std::string name) {
  for (const std::string_view ending : {".gz", ".bz2", ".xz", ".zst"})
    if (name.ends_with(ending)) return name.substr(0, name.size() - ending.size());
  return name;
}

/// libarchive's reader of the source, or of a member of another archive.
struct InputStream::Archive {
  /// Reads `source`, or the current member of `outer`; both must outlive this. `name` is for
  /// messages, `plain_name` that of the bytes after decompression.
  Archive(std::string name, std::string plain_name, GzipReader& source, Archive* outer = nullptr)
      : name(std::move(name)),
        plain_name(std::move(plain_name)),
        handle(archive_read_new()),
        source_(source),
        outer_(outer) {
    if (!handle) throw std::bad_alloc();
    archive_read_support_filter_bzip2(handle);
    archive_read_support_filter_xz(handle);
    archive_read_support_filter_zstd(handle);
    archive_read_support_format_empty(handle);
    archive_read_support_format_raw(handle);
    archive_read_support_format_tar(handle);
    // Reads past the first end-of-archive mark, so that the whole stream is verified.
    archive_read_set_options(handle, "tar:read_concatenated_archives");
  }
  ~Archive() { archive_read_free(handle); }
  Archive(const Archive&) = delete;

  void open() {
    const auto read_block = [](archive*, void* self, const void** block) -> la_ssize_t {
      *block = static_cast<Archive*>(self)->block_.data();
      return static_cast<Archive*>(self)->read_block();
    };
    require(archive_read_open(handle, this, nullptr, read_block, nullptr));
  }

  bool is_tar() const {
    return (archive_format(handle) & ARCHIVE_FORMAT_BASE_MASK) == ARCHIVE_FORMAT_TAR;
  }

  /// Throws unless `result` of libarchive is good. A warning is: it concerns an attribute of the
  /// member, such as a name in an unknown encoding.
  void require(int result) const {
    if (result != ARCHIVE_OK && result != ARCHIVE_WARN) fail();
  }

  /// After the last member: throws when libarchive has not read all. It ignores what follows a
  /// bzip2 stream and is none, such as one with a damaged header. NULs may fill the file up, as
  /// on tapes.
  void require_end() {
    la_ssize_t got = 0;
    while ((got = read_block()) > 0) continue;
    if (got < 0) fail();
    const la_int64_t read = archive_filter_bytes(handle, -1);
    if (read < content_end_)
      throw DataError("{}: broken compressed stream: damaged or foreign data after byte {}", name,
                      read);
  }

  /// Throws the error of the source, or else that of the outermost archive that has one.
  [[noreturn]] void fail(const std::string& text = "") const {
    const std::string& place = text.empty() ? name : text;
    if (!source_.io_error().empty())
      throw IoError("cannot read '{}': {}", place, source_.io_error());
    if (!source_.data_error().empty())
      throw DataError("{}: broken gzip stream: {}", place, source_.data_error());
    if (outer_ && archive_errno(outer_->handle) != 0) outer_->fail();
    const char* reason = archive_error_string(handle);
    throw DataError("{}: broken {}: {}", place, is_tar() ? "tar archive" : "compressed stream",
                    reason ? reason : "unknown reason");
  }

  std::string name, plain_name;
  archive* handle;

 private:
  /// The size of the next block; 0 at the end, -1 after an error.
  la_ssize_t read_block() {
    const la_ssize_t got = outer_ ? archive_read_data(outer_->handle, block_.data(), block_.size())
                                  : source_.read(block_.data(), block_.size());
    if (got <= 0) return got < 0 ? -1 : 0;
    const std::string_view bytes(block_.data(), static_cast<std::size_t>(got));
    if (const std::size_t last = bytes.find_last_not_of('\0'); last != std::string_view::npos)
      content_end_ = given_ + static_cast<la_int64_t>(last) + 1;
    given_ += got;
    return got;
  }

  GzipReader& source_;
  Archive* outer_;
  std::vector<char> block_ = std::vector<char>(kBlockBytes);
  la_int64_t given_ = 0;        ///< bytes that libarchive was given
  la_int64_t content_end_ = 0;  ///< after the last of them that is not NUL
};

InputStream::InputStream(const std::string& input)
    : input_(input == "-" ? "standard input" : input),
      name_(input_),
      plain_name_(without_compression_suffix(input_)),
      source_(std::make_unique<GzipReader>(input)) {
  archives_.push_back(std::make_unique<Archive>(input_, plain_name_, *source_));
  archives_.back()->open();
}

InputStream::~InputStream() {
  while (!archives_.empty()) archives_.pop_back();  // the innermost first
}

bool InputStream::next_entry() {
  Archive& archive = *archives_.back();
  archive_entry* entry = nullptr;
  const int result = archive_read_next_header(archive.handle, &entry);
  if (result == ARCHIVE_EOF) {
    archive.require_end();
    return false;
  }
  archive.require(result);
  name_ = archive.name;
  plain_name_ = archive.plain_name;
  if (!archive.is_tar()) return true;
  const char* path = archive_entry_pathname(entry);
  // In the C locale, which jobs often have, a name outside ASCII is null.
  if (!path) path = archive_entry_pathname_utf8(entry);
  plain_name_ = path && archive_entry_filetype(entry) == AE_IFREG ? path : "";
  name_ = fmt::format("{}:{}", archive.name, plain_name_);
  return true;
}

bool InputStream::next() {
  while (true) {
    if (!next_entry()) {
      if (archives_.size() == 1) break;
      archives_.pop_back();
      continue;
    }
    const bool member = archives_.size() > 1 || archives_.back()->is_tar();
    if (archives_.back()->is_tar() && is_packed(plain_name_)) {
      if (archives_.size() == kMaxNesting)
        throw DataError("{}: archives are nested more than {} deep", name_, kMaxNesting);
      auto inner = std::make_unique<Archive>(name_, without_compression_suffix(plain_name_),
                                             *source_, archives_.back().get());
      inner->open();
      archives_.push_back(std::move(inner));
      continue;
    }
    if (member && !is_text(plain_name_)) {
      if (is_text(without_compression_suffix(plain_name_)))
        throw DataError("{}: a gzip file inside an archive cannot be read; decompress it first",
                        name_);
      continue;
    }
    found_text_ = true;
    return true;
  }
  if (archives_.back()->is_tar() && !found_text_)
    throw DataError("{}: the archive has no member *.txt, *.json or *.jsonl", input_);
  return false;
}

std::size_t InputStream::read(char* buffer, std::size_t bytes) {
  const la_ssize_t got = archive_read_data(archives_.back()->handle, buffer, bytes);
  if (got < 0) archives_.back()->fail(name_);
  return static_cast<std::size_t>(got);
}

// ---------------------------------------------------------------------------- documents

namespace {

constexpr std::size_t kBatchBytes = 1 << 20;

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r\v\f") == std::string_view::npos;
}

/// `wanted`, or what it means for a text of this name.
DocumentFormat format_of(const std::string& name, DocumentFormat wanted) {
  if (wanted == DocumentFormat::files_by_name)
    return name.ends_with(".jsonl") || name.ends_with(".json") ? DocumentFormat::json_lines
                                                               : DocumentFormat::text_files;
  const bool whole = wanted == DocumentFormat::by_name_whole;
  if (!whole && wanted != DocumentFormat::by_name) return wanted;
  if (!name.ends_with(".txt")) return DocumentFormat::json_lines;
  return whole ? DocumentFormat::text_files : DocumentFormat::text_lines;
}

// <stem>.lazy/text holds texts without boundaries, text.len.pkl a Python pickle of their lengths.
void refuse_lazy(const std::string& input) {
  const std::filesystem::path path = input;
  const bool lazy = path.extension() == ".lazy" || path.parent_path().extension() == ".lazy" ||
                    path.filename().string().ends_with(".len.pkl");
  if (lazy)
    throw DataError(
        "'{}' belongs to a folder of Megatron-LM v0's lazy loader, which cannot be read: give the "
        "JSON lines that it was made of",
        input);
}

/// Throws for binary formats that often hold corpora.
void refuse_binary(std::string_view bytes, const std::string& input) {
  if (bytes.starts_with("PAR1"))
    throw DataError(
        "{}: a Parquet file; write its column of texts as JSON lines first, for example by "
        "duckdb -c \"COPY (SELECT text FROM 'FILE.parquet') TO 'FILE.jsonl' (FORMAT json)\"",
        input);
  if (bytes.starts_with("ARROW1"))
    throw DataError("{}: an Arrow file; write its column of texts as JSON lines first", input);
  if (bytes.starts_with("PK\x03\x04"))
    throw DataError("{}: a zip archive; unpack it, or pack the texts as a tar archive", input);
  if (bytes.starts_with("%PDF"))
    throw DataError("{}: a PDF; extract its text first, for example by pdftotext", input);
  if (bytes.starts_with("\xff\xfe") || bytes.starts_with("\xfe\xff"))
    throw DataError("{}: UTF-16; convert it: iconv -f UTF-16 -t UTF-8 FILE", input);
}

}  // namespace

void require_rereadable(const std::vector<std::string>& inputs, const std::string& reader) {
  for (const std::string& input : inputs) {
    std::error_code unknown;
    if (input == "-" || std::filesystem::is_other(input, unknown))
      throw UsageError(
          "{} reads the input more than once: {} is not a regular file; write it to one first",
          reader, input == "-" ? "standard input" : fmt::format("'{}'", input));
  }
}

DocumentReader::DocumentReader(DocumentSource source) : source_(std::move(source)) {
  if (source_.inputs.empty()) throw UsageError("no input is named");
  if (std::count(source_.inputs.begin(), source_.inputs.end(), "-") > 1)
    throw UsageError("standard input ('-') can be read only once");
  for (const std::string& input : source_.inputs) {
    refuse_lazy(input);
    std::error_code unknown;
    if (input != "-" && std::filesystem::is_directory(input, unknown))
      throw IoError("'{}' is a folder; name the files in it, as {}/*.jsonl does in a shell", input,
                    input.ends_with('/') ? input.substr(0, input.size() - 1) : input);
    if (input != "-" && ::access(input.c_str(), R_OK) != 0)
      throw IoError("cannot open '{}': {}", input, std::strerror(errno));
  }
}

bool DocumentReader::open_next() {
  while (!input_ || !input_->next()) {
    input_.reset();
    if (next_ == source_.inputs.size()) return false;
    input_ = std::make_unique<InputStream>(source_.inputs[next_++]);
  }
  format_ = format_of(input_->plain_name(), source_.format);
  line_ = 0;
  return true;
}

bool DocumentReader::fill(std::string& bytes) {
  const std::size_t before = bytes.size();
  bytes.resize(before + kBatchBytes);
  const std::size_t got = input_->read(bytes.data() + before, kBatchBytes);
  bytes.resize(before + got);
  return got > 0;
}

bool DocumentReader::read(DocumentBatch& batch) {
  while (true) {
    const bool first = !in_text_;
    if (first && !open_next()) return false;
    in_text_ = true;
    batch.input = input_->name();
    batch.json = format_ == DocumentFormat::json_lines;
    batch.bytes = std::exchange(rest_, {});
    batch.records.clear();
    // A batch ends at the last newline in it; without a newline, it grows.
    std::size_t end = std::string::npos;
    while (end == std::string::npos) {
      const std::size_t before = batch.bytes.size();
      if (!fill(batch.bytes)) {
        in_text_ = false;
        end = batch.bytes.size();
      } else if (format_ != DocumentFormat::text_files) {
        const std::size_t newline = std::string_view(batch.bytes).substr(before).rfind('\n');
        if (newline != std::string_view::npos) end = before + newline + 1;
      }
    }
    rest_ = batch.bytes.substr(end);
    batch.bytes.resize(end);
    if (first) refuse_binary(batch.bytes, batch.input);
    if (first && batch.bytes.starts_with("\xEF\xBB\xBF")) batch.bytes.erase(0, 3);
    cut(batch);
    if (!batch.records.empty()) return true;
  }
}

void DocumentReader::cut(DocumentBatch& batch) {
  const std::string_view bytes = batch.bytes;
  if (format_ == DocumentFormat::text_files) {
    if (!is_blank(bytes)) batch.records.push_back({0, bytes.size(), 0});
    return;
  }
  for (std::size_t begin = 0; begin < bytes.size();) {
    std::string_view line = bytes.substr(begin, bytes.find('\n', begin) - begin);
    const std::size_t next = begin + line.size() + 1;
    if (line.ends_with('\r')) line.remove_suffix(1);
    ++line_;
    if (batch.json || source_.keep_blank_lines || !is_blank(line))
      batch.records.push_back({begin, line.size(), line_});
    begin = next;
  }
}

std::string place_of(const DocumentBatch& batch, const DocumentBatch::Record& record) {
  return record.line ? fmt::format("{}:{}", batch.input, record.line) : batch.input;
}

std::string document_text(const DocumentBatch& batch, const DocumentBatch::Record& record,
                          const std::string& key, const char* plain_text) {
  const std::string_view bytes = std::string_view(batch.bytes).substr(record.offset, record.size);
  const std::string place = place_of(batch, record);
  const std::size_t valid = valid_utf8_prefix(bytes);
  if (valid != bytes.size())
    throw DataError("{}: not UTF-8 at byte {} (0x{:02x})", place, valid + 1,
                    static_cast<unsigned char>(bytes[valid]));
  if (!batch.json) return std::string(bytes);
  // Text in a file that is not called *.txt.
  const bool named = batch.input.ends_with(".json") || batch.input.ends_with(".jsonl");
  if (record.line == 1 && batch.input.ends_with(".bin"))
    throw DataError(
        "{}: not a JSON object; the .bin file of a dataset has token ids, not text: "
        "trireme-inspect "
        "lists it, trireme-preprocess merge appends datasets to one",
        place);
  if (record.line == 1 && !named && !bytes.starts_with('{') && !is_json_object(bytes))
    throw DataError("{}: not a JSON object; {}", place, plain_text);
  return json_text(bytes, key, place);
}

}  // namespace trireme::tokenizer
