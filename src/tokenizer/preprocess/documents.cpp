#include "tokenizer/preprocess/documents.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "tokenizer/utf8.hpp"

namespace trireme::tokenizer {
namespace {

constexpr std::size_t kBatchBytes = 1 << 20;

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r\v\f") == std::string_view::npos;
}

DocumentFormat format_of(const std::string& name) {
  return name.ends_with(".txt") ? DocumentFormat::text_lines : DocumentFormat::json_lines;
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
}

}  // namespace

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
  format_ =
      source_.format == DocumentFormat::by_name ? format_of(input_->plain_name()) : source_.format;
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
                          const std::string& key) {
  const std::string_view bytes = std::string_view(batch.bytes).substr(record.offset, record.size);
  const std::string place = place_of(batch, record);
  const std::size_t valid = valid_utf8_prefix(bytes);
  if (valid != bytes.size())
    throw DataError("{}: not UTF-8 at byte {} (0x{:02x})", place, valid + 1,
                    static_cast<unsigned char>(bytes[valid]));
  return batch.json ? json_text(bytes, key, place) : std::string(bytes);
}

}  // namespace trireme::tokenizer
