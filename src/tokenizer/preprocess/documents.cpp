#include "tokenizer/preprocess/documents.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
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
  return name.ends_with(".txt") ? DocumentFormat::text_lines : DocumentFormat::json_lines;
}

// <stem>.lazy/text and text.len.pkl are texts without boundaries and a Python pickle of them.
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

}  // namespace

DocumentReader::DocumentReader(DocumentSource source) : source_(std::move(source)) {
  if (source_.inputs.empty()) throw UsageError("no input is named");
  if (std::count(source_.inputs.begin(), source_.inputs.end(), "-") > 1)
    throw UsageError("standard input ('-') can be read only once");
  for (const std::string& input : source_.inputs) {
    refuse_lazy(input);
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
    // A batch ends with the last line end in it; without one, the line goes on.
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
