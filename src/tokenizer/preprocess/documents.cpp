#include "tokenizer/preprocess/documents.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "core/error.hpp"
#include "tokenizer/utf8.hpp"

namespace trireme::tokenizer {
namespace {

constexpr std::size_t kBatchBytes = 1 << 20;

/// Finds one string of a JSON object without building the object. Of a repeated key the last value
/// counts, as in Python.
class FindKey : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit FindKey(const std::string& wanted) : wanted_(wanted) {}

  bool null() override { return other("null"); }
  bool boolean(bool) override { return other("a boolean"); }
  bool number_integer(number_integer_t) override { return other("a number"); }
  bool number_unsigned(number_unsigned_t) override { return other("a number"); }
  bool number_float(number_float_t, const string_t&) override { return other("a number"); }
  bool binary(binary_t&) override { return other("binary"); }
  bool string(string_t& value) override {
    if (depth_ == 0) root_is_object_ = false;
    if (depth_ == 1 && here_) {
      text = std::move(value);
      kind = "a string";
    }
    return true;
  }
  bool start_object(std::size_t) override {
    other("an object");
    root_is_object_ = root_is_object_ || depth_ == 0;
    ++depth_;
    return true;
  }
  bool start_array(std::size_t) override {
    other("an array");
    ++depth_;
    return true;
  }
  bool end_object() override { return --depth_, true; }
  bool end_array() override { return --depth_, true; }
  bool key(string_t& name) override {
    if (depth_ == 1) here_ = name == wanted_;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& exception) override {
    // The library's message has its own name and a place before the reason.
    const std::string_view message = exception.what();
    const std::size_t reason = message.find("syntax error");
    error = fmt::format("not JSON at byte {}: {}", position,
                        message.substr(reason == std::string_view::npos ? 0 : reason));
    return false;
  }

  bool root_is_object() const { return root_is_object_; }

  std::optional<std::string> text;
  const char* kind = nullptr;  ///< what lies under the key; null when there is no such key
  std::string error;

 private:
  bool other(const char* what) {
    if (depth_ == 1 && here_) {
      text.reset();
      kind = what;
    }
    return true;
  }

  const std::string& wanted_;
  int depth_ = 0;
  bool here_ = false;
  bool root_is_object_ = false;
};

std::string json_text(std::string_view line, const std::string& key, const std::string& place) {
  FindKey found(key);
  if (!nlohmann::json::sax_parse(line.begin(), line.end(), &found))
    throw DataError("{}: {}", place, found.error);
  if (!found.root_is_object()) throw DataError("{}: not a JSON object", place);
  if (!found.kind) throw DataError("{}: there is no key '{}'", place, key);
  if (!found.text) throw DataError("{}: '{}' is {}, not a string", place, key, found.kind);
  return std::move(*found.text);
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r\v\f") == std::string_view::npos;
}

DocumentFormat format_of(const std::string& name) {
  const bool text = name.ends_with(".txt") || name.ends_with(".txt.gz");
  return text ? DocumentFormat::text_lines : DocumentFormat::json_lines;
}

}  // namespace

DocumentReader::DocumentReader(DocumentSource source) : source_(std::move(source)) {
  if (source_.inputs.empty()) throw UsageError("no input is named");
  if (std::count(source_.inputs.begin(), source_.inputs.end(), "-") > 1)
    throw UsageError("standard input ('-') can be read only once");
  for (const std::string& input : source_.inputs)
    if (input != "-" && ::access(input.c_str(), R_OK) != 0)
      throw IoError("cannot open '{}': {}", input, std::strerror(errno));
}

void DocumentReader::open_next() {
  const std::string& input = source_.inputs[next_++];
  const bool standard_input = input == "-";
  name_ = standard_input ? "standard input" : input;
  format_ = source_.format == DocumentFormat::by_name ? format_of(input) : source_.format;
  line_ = 0;
  const int descriptor =
      standard_input ? ::dup(STDIN_FILENO) : ::open(input.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw IoError("cannot open '{}': {}", name_, std::strerror(errno));
  // zlib tells gzip by its magic bytes and hands other files through as they are.
  file_.reset(gzdopen(descriptor, "rb"));
  if (!file_) {
    ::close(descriptor);
    throw std::bad_alloc();
  }
  gzbuffer(file_.get(), 1 << 17);
}

bool DocumentReader::fill(std::string& bytes) {
  const std::size_t before = bytes.size();
  bytes.resize(before + kBatchBytes);
  errno = 0;
  const int got = gzread(file_.get(), bytes.data() + before, kBatchBytes);
  int code = Z_OK;
  const char* message = gzerror(file_.get(), &code);
  if (code == Z_ERRNO) throw IoError("cannot read '{}': {}", name_, std::strerror(errno));
  if (got < 0 || (code != Z_OK && code != Z_STREAM_END)) {
    // zlib puts the descriptor's number before its reason: "<fd:3>: ".
    const std::string_view reason = message;
    const std::size_t prefix = reason.find(">: ");
    throw DataError("{}: broken gzip stream: {}", name_,
                    reason.substr(prefix == std::string_view::npos ? 0 : prefix + 3));
  }
  bytes.resize(before + static_cast<std::size_t>(got));
  return got > 0;
}

bool DocumentReader::read(DocumentBatch& batch) {
  while (file_ || next_ < source_.inputs.size()) {
    const bool first = !file_;
    if (first) open_next();
    batch.input = name_;
    batch.json = format_ == DocumentFormat::json_lines;
    batch.bytes = std::exchange(rest_, {});
    batch.records.clear();
    // A batch ends with the last line end in it; without one, the line goes on.
    std::size_t end = std::string::npos;
    while (end == std::string::npos) {
      const std::size_t before = batch.bytes.size();
      if (!fill(batch.bytes)) {
        file_.reset();
        end = batch.bytes.size();
      } else if (format_ != DocumentFormat::text_files) {
        const std::size_t newline = std::string_view(batch.bytes).substr(before).rfind('\n');
        if (newline != std::string_view::npos) end = before + newline + 1;
      }
    }
    rest_ = batch.bytes.substr(end);
    batch.bytes.resize(end);
    if (first && batch.bytes.starts_with("\xEF\xBB\xBF")) batch.bytes.erase(0, 3);
    cut(batch);
    if (!batch.records.empty()) return true;
  }
  return false;
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
    if (batch.json || !is_blank(line)) batch.records.push_back({begin, line.size(), line_});
    begin = next;
  }
}

std::string document_text(const DocumentBatch& batch, const DocumentBatch::Record& record,
                          const std::string& key) {
  const std::string_view bytes = std::string_view(batch.bytes).substr(record.offset, record.size);
  const std::string place =
      record.line ? fmt::format("{}:{}", batch.input, record.line) : batch.input;
  const std::size_t valid = valid_utf8_prefix(bytes);
  if (valid != bytes.size())
    throw DataError("{}: not UTF-8 at byte {} (0x{:02x})", place, valid + 1,
                    static_cast<unsigned char>(bytes[valid]));
  return batch.json ? json_text(bytes, key, place) : std::string(bytes);
}

}  // namespace trireme::tokenizer
