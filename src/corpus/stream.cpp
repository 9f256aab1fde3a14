#include "corpus/stream.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme::corpus {

using tokenizer::DocumentBatch;

Document read_document(const DocumentBatch& batch, const DocumentBatch::Record& record,
                       const std::string& key) {
  Document document;
  document.place = tokenizer::place_of(batch, record);
  document.text = tokenizer::document_text(batch, record, key);
  document.line = batch.json ? batch.bytes.substr(record.offset, record.size)
                             : nlohmann::json{{key, document.text}}.dump();
  return document;
}

std::uint64_t count_characters(std::string_view text) {
  return static_cast<std::uint64_t>(
      std::ranges::count_if(text, [](char byte) { return (byte & 0xC0) != 0x80; }));
}

std::uint64_t mix64(std::uint64_t word) {
  word += 0x9E3779B97F4A7C15;
  word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9;
  word = (word ^ word >> 27) * 0x94D049BB133111EB;
  return word ^ word >> 31;
}

Hash128 hash128(std::string_view bytes) {
  // Two independent lanes over 8-byte words, each mixed with its own odd constants.
  Hash128 hash{bytes.size() * 0x9E3779B97F4A7C15, ~bytes.size()};
  const auto add = [&](std::uint64_t word) {
    hash.low = mix64(hash.low ^ word);
    hash.high = mix64(hash.high + word * 0xD6E8FEB86659FD93);
  };
  std::uint64_t word = 0;
  for (; bytes.size() >= 8; bytes.remove_prefix(8)) {
    std::memcpy(&word, bytes.data(), 8);
    add(word);
  }
  word = 0;
  std::memcpy(&word, bytes.data(), bytes.size());
  add(word);
  return hash;
}

double input_bytes(const std::vector<std::string>& inputs) {
  double bytes = 0;
  for (const std::string& input : inputs) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(input, error)) return 0;
    if (tokenizer::without_compression_suffix(input) != input) return 0;
    bytes += static_cast<double>(std::filesystem::file_size(input, error));
  }
  return bytes;
}

// ---------------------------------------------------------------------------- temporary files

namespace {

constexpr std::size_t kSpoolBuffer = 1 << 18;

}  // namespace

Spool::Spool(const std::filesystem::path& near) : folder_(near.parent_path()) {
  if (folder_.empty()) folder_ = ".";
  std::filesystem::create_directories(folder_);
  std::string name = (folder_ / ".trireme_spool_XXXXXX").string();
  fd_ = ::mkostemp(name.data(), O_CLOEXEC);
  if (fd_ < 0)
    throw IoError("cannot create a temporary file in '{}': {}", folder_.string(),
                  std::strerror(errno));
  ::unlink(name.c_str());
}

Spool::Spool(Spool&& other) noexcept
    : folder_(std::move(other.folder_)),
      fd_(std::exchange(other.fd_, -1)),
      written_(other.written_),
      buffer_(std::move(other.buffer_)) {}

Spool::~Spool() {
  if (fd_ >= 0) ::close(fd_);
}

std::uint64_t Spool::append(std::string_view bytes) {
  const std::uint64_t offset = size();
  buffer_ += bytes;
  if (buffer_.size() >= kSpoolBuffer) flush();
  return offset;
}

void Spool::flush() {
  for (std::size_t at = 0; at < buffer_.size();) {
    const ::ssize_t wrote = ::write(fd_, buffer_.data() + at, buffer_.size() - at);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0)
      throw IoError("cannot write a temporary file in '{}': {}", folder_.string(),
                    std::strerror(errno));
    at += static_cast<std::size_t>(wrote);
  }
  written_ += buffer_.size();
  buffer_.clear();
}

std::string Spool::read(std::uint64_t offset, std::size_t size) const {
  std::string bytes(size, '\0');
  for (std::size_t at = 0; at < size;) {
    const ::ssize_t got =
        ::pread(fd_, bytes.data() + at, size - at, static_cast<::off_t>(offset + at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      throw IoError("cannot read a temporary file in '{}': {}", folder_.string(),
                    got < 0 ? std::strerror(errno) : "it has become shorter");
    at += static_cast<std::size_t>(got);
  }
  return bytes;
}

// ---------------------------------------------------------------------------- report

std::string Report::table() const {
  TableRows rows = {{command, "documents", "% of read", "characters"}};
  const auto row = [&](const std::string& name, const Count& count) {
    const double share = 100.0 * static_cast<double>(count.documents) /
                         static_cast<double>(std::max<std::uint64_t>(read.documents, 1));
    rows.push_back({name, fmt::format("{}", count.documents), fmt::format("{:.2f}", share),
                    fmt::format("{}", count.characters)});
  };
  row("read", read);
  for (const auto& [reason, count] : dropped) row("dropped: " + reason, count);
  row("kept", kept);
  for (const auto& [change, count] : changed) row("changed: " + change, count);
  return aligned_table(rows, 1);
}

nlohmann::ordered_json Report::json() const {
  const auto value = [](const Count& count) {
    return nlohmann::ordered_json{{"documents", count.documents}, {"characters", count.characters}};
  };
  nlohmann::ordered_json json = {{"command", command}, {"read", value(read)}};
  json["dropped"] = nlohmann::ordered_json::object();
  for (const auto& [reason, count] : dropped) json["dropped"][reason] = value(count);
  json["kept"] = value(kept);
  json["changed"] = nlohmann::ordered_json::object();
  for (const auto& [change, count] : changed) json["changed"][change] = value(count);
  json["bytes"] = bytes;
  return json;
}

Collector::Collector(std::string command, const StreamOptions& options)
    : options_(options),
      report_{.command = command},
      progress_(std::move(command), "B", input_bytes(options.source.inputs), options.progress),
      output_(options.output) {
  if (options.output.empty()) throw UsageError("no output is named");
  if (!options.dropped.empty()) dropped_ = std::make_unique<tokenizer::PartFile>(options.dropped);
}

void Collector::take(const Outcome& outcome) {
  report_.read.add(outcome.characters);
  for (const std::string_view change : outcome.changes)
    report_.changed[std::string(change)].add(outcome.characters);
  if (!outcome.reason.empty()) {
    report_.dropped[outcome.reason].add(outcome.characters);
    if (dropped_) dropped_->write(outcome.dropped_line.data(), outcome.dropped_line.size());
    return;
  }
  report_.kept.add(outcome.characters);
  for (const std::string& line : outcome.lines) output_.write(line.data(), line.size());
}

void Collector::read_bytes(std::uint64_t bytes) {
  report_.bytes += bytes;
  progress_.update(static_cast<double>(report_.bytes));
}

Report Collector::finish() {
  output_.sync();
  if (dropped_) dropped_->sync();
  output_.publish();
  if (dropped_) dropped_->publish();
  report_.seconds = clock_.seconds();
  if (!options_.report.empty())
    write_file_atomically(options_.report, report_.json().dump(2) + "\n");
  return std::move(report_);
}

// ---------------------------------------------------------------------------- the stream

namespace {

/// The outcomes of a batch, and its bytes.
struct BatchOutcomes {
  std::vector<Outcome> outcomes;
  std::uint64_t bytes = 0;
};

/// The line of an unreadable document for StreamOptions::dropped: bytes that are not UTF-8 become
/// U+FFFD.
std::string unreadable_line(const std::string& message, std::string_view bytes) {
  const nlohmann::ordered_json json = {
      {"reason", "unreadable"}, {"message", message}, {"bytes", bytes}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace

void for_each_document(const StreamOptions& options, const std::function<Outcome(Document&)>& step,
                       const std::function<void(Outcome&)>& take,
                       const std::function<void(std::uint64_t)>& read_bytes) {
  if (options.workers < 1) throw UsageError("--workers {}: must be at least 1", options.workers);
  tokenizer::DocumentReader reader(options.source);
  const auto work = [&](const DocumentBatch& batch) {
    BatchOutcomes result;
    result.bytes = batch.bytes.size();
    for (const DocumentBatch::Record& record : batch.records) {
      try {
        Document document = read_document(batch, record, options.source.key);
        result.outcomes.push_back(step(document));
      } catch (const DataError& error) {
        if (!options.skip_bad) throw;
        const auto bytes = std::string_view(batch.bytes).substr(record.offset, record.size);
        result.outcomes.push_back({.reason = "unreadable",
                                   .dropped_line = unreadable_line(error.what(), bytes),
                                   .characters = count_characters(bytes)});
      }
    }
    return result;
  };
  in_order<DocumentBatch>(
      options.workers, [&](DocumentBatch& batch) { return reader.read(batch); }, work,
      [&](BatchOutcomes result) {
        for (Outcome& outcome : result.outcomes) take(outcome);
        read_bytes(result.bytes);
      });
}

std::string Document::field(const std::string& key) const {
  const auto value = tokenizer::json_value(line, key);
  if (!value || !value->starts_with('"')) return "";
  const auto parsed = nlohmann::json::parse(*value, nullptr, /*allow_exceptions=*/false);
  return parsed.is_string() ? parsed.get<std::string>() : "";
}

std::string with_field(std::string_view line, const std::string& key, const nlohmann::json& value) {
  return tokenizer::with_json_value(
      line, key, value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

std::string json_line(const Document& document, const std::string& key, const std::string& text) {
  return (text == document.text ? document.line : with_field(document.line, key, text)) + "\n";
}

}  // namespace trireme::corpus
