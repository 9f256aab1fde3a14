#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "core/error.hpp"
#include "tokenizer/preprocess/preprocess.hpp"

namespace trireme::tokenizer {
namespace {

/// Finds one string of a JSON object without building the object.
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
    // The library's message starts with its name and a position.
    const std::string_view message = exception.what();
    const std::size_t place_end = message.find(": ");
    error = fmt::format("not JSON at byte {}: {}", position,
                        message.substr(place_end == std::string_view::npos ? 0 : place_end + 2));
    return false;
  }

  bool root_is_object() const { return root_is_object_; }

  std::optional<std::string> text;
  const char* kind = nullptr;  ///< type of the value under the key; null without such a key
  std::string error;
  bool unpaired_surrogate = false;  ///< whether the text has one; it is then not valid

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

std::size_t end_of_digits(std::string_view text, std::size_t at) {
  return std::min(text.find_first_not_of("0123456789", at), text.size());
}

/// Bytes of the number at the start of `text`; 0 when there is none.
std::size_t number_length(std::string_view text) {
  std::size_t at = text.starts_with('-') ? 1 : 0;
  const std::size_t whole = end_of_digits(text, at);
  if (whole == at) return 0;
  at = text[at] == '0' ? at + 1 : whole;
  if (text.substr(at).starts_with('.')) {
    const std::size_t end = end_of_digits(text, at + 1);
    if (end > at + 1) at = end;
  }
  if (at == text.size() || (text[at] != 'e' && text[at] != 'E')) return at;
  const bool is_signed = at + 1 < text.size() && (text[at + 1] == '+' || text[at + 1] == '-');
  const std::size_t exponent = at + (is_signed ? 2 : 1);
  const std::size_t end = end_of_digits(text, exponent);
  return end > exponent ? end : at;
}

/// Whether `number` exceeds a double: nlohmann::json refuses it, Python reads it.
bool is_too_large(std::string_view number) {
  double value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  return error == std::errc::result_out_of_range;
}

/// A part of a line, and its replacement in strict JSON.
struct Repair {
  std::size_t length;
  std::string text;
};

/// Repairs the start of `line`, outside strings: a word or number that only Python reads becomes a
/// zero between spaces, so that it does not join its neighbours.
Repair repair_outside(std::string_view line) {
  constexpr std::array<std::string_view, 3> kWords = {"NaN", "-Infinity", "Infinity"};
  const auto* word = std::ranges::find_if(
      kWords, [&](std::string_view candidate) { return line.starts_with(candidate); });
  const std::size_t number = number_length(line);
  const std::size_t length = word != kWords.end() ? word->size() : std::max<std::size_t>(number, 1);
  std::string text(line.substr(0, length));
  if (word != kWords.end() || (number > 0 && is_too_large(text))) {
    text.assign(length, ' ');
    text[length / 2] = '0';
  }
  return {length, std::move(text)};
}

/// Repairs the start of `line`, inside a string: a lone surrogate \uD800 to \uDFFF becomes
/// `character`, an escape of the same length.
Repair repair_inside(std::string_view line, std::string_view character) {
  const auto is_escape = [&](std::size_t at, std::string_view third_digit) {
    const std::string_view escape = line.substr(std::min(at, line.size()), 6);
    return escape.size() == 6 && (escape.starts_with("\\ud") || escape.starts_with("\\uD")) &&
           third_digit.find(escape[3]) != std::string_view::npos &&
           escape.find_first_not_of("0123456789abcdefABCDEF", 4) == std::string_view::npos;
  };
  constexpr std::string_view kFirst = "89abAB", kSecond = "cdefCDEF";
  const bool first = is_escape(0, kFirst);
  if (first && is_escape(6, kSecond)) return {12, std::string(line.substr(0, 12))};
  if (first || is_escape(0, kSecond)) return {6, std::string(character)};
  const std::size_t length = std::min<std::size_t>(line.size(), line[0] == '\\' ? 2 : 1);
  return {length, std::string(line.substr(0, length))};
}

/// `line` in strict JSON of the same length: replaces what Python's json reads and the library does
/// not, that is words and numbers out of range, and lone surrogates by `character`.
std::string strict_json(std::string_view line, std::string_view character) {
  std::string strict;
  bool in_string = false;
  while (!line.empty()) {
    if (line[0] == '"') in_string = !in_string;
    const Repair repair = in_string ? repair_inside(line, character) : repair_outside(line);
    strict += repair.text;
    line.remove_prefix(repair.length);
  }
  return strict;
}

/// Looks for `key` in `line`; the result has the text, or else `error`.
FindKey look_up(std::string_view line, const std::string& key) {
  FindKey found(key);
  // The library takes a NUL for the end of its input, and what follows as not there.
  if (const std::size_t nul = line.find('\0'); nul != std::string_view::npos) {
    found.error = fmt::format("not JSON at byte {}: a NUL", nul + 1);
    return found;
  }
  if (nlohmann::json::sax_parse(line.begin(), line.end(), &found)) return found;
  // Lines that only Python reads are rare: repair after the strict parse has failed.
  FindKey repaired(key), otherwise(key);
  if (!nlohmann::json::sax_parse(strict_json(line, "\\ufffd"), &repaired)) return repaired;
  nlohmann::json::sax_parse(strict_json(line, "\\ufffe"), &otherwise);
  repaired.unpaired_surrogate = repaired.text != otherwise.text;
  return repaired;
}

}  // namespace

std::string json_text(std::string_view line, const std::string& key, const std::string& place) {
  FindKey found = look_up(line, key);
  if (!found.error.empty()) throw DataError("{}: {}", place, found.error);
  if (!found.root_is_object()) throw DataError("{}: not a JSON object", place);
  if (!found.kind) throw DataError("{}: there is no key '{}'", place, key);
  if (!found.text) throw DataError("{}: '{}' is {}, not a string", place, key, found.kind);
  if (found.unpaired_surrogate)
    throw DataError("{}: '{}' has half of a surrogate pair (\\ud800 to \\udfff): no character",
                    place, key);
  return std::move(*found.text);
}

int json_depth(std::string_view json) {
  int depth = 0, deepest = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (c == '"')
      quoted = !quoted;
    else if (quoted)
      i += c == '\\';
    else if (c == '[' || c == '{')
      deepest = std::max(deepest, ++depth);
    else if (c == ']' || c == '}')
      --depth;
  }
  return deepest;
}

bool is_json_object(std::string_view line) {
  const std::string no_key;
  const FindKey found = look_up(line, no_key);
  return found.error.empty() && found.root_is_object();
}

// One key of a JSON line, found and replaced in the text of the line: a parser's numbers would
// lose digits, and its strings their escapes.

namespace {

/// The byte after the string that begins at `at`.
std::size_t end_of_string(std::string_view line, std::size_t at) {
  for (++at; at < line.size() && line[at] != '"'; ++at) at += line[at] == '\\';
  return std::min(at + 1, line.size());
}

std::string_view trimmed(std::string_view text) {
  constexpr const char* kBlanks = " \t\r\n";
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}

}  // namespace

std::optional<std::string_view> json_value(std::string_view line, const std::string& key) {
  std::optional<std::string_view> value;
  std::string_view last_string;
  std::size_t begin = 0;
  int depth = 0;
  bool here = false;  // in a value under `key`
  for (std::size_t at = 0; at < line.size(); ++at) {
    const char c = line[at];
    if (c == '"') {
      const std::size_t end = end_of_string(line, at);
      last_string = line.substr(at, end - at);
      at = end - 1;
    } else if (c == ':' && depth == 1) {
      here = nlohmann::json::parse(last_string, nullptr, /*allow_exceptions=*/false) == key;
      begin = at + 1;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == ',' || c == '}' || c == ']') {
      if (depth == 1 && here) value = trimmed(line.substr(begin, at - begin));
      depth -= c != ',';
    }
  }
  return value;
}

std::string with_json_value(std::string_view line, const std::string& key, std::string_view value) {
  if (const auto found = json_value(line, key)) {
    const auto begin = static_cast<std::size_t>(found->data() - line.data());
    return fmt::format("{}{}{}", line.substr(0, begin), value, line.substr(begin + found->size()));
  }
  const std::size_t end = line.rfind('}');
  const std::string name =
      nlohmann::json(key).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return fmt::format("{},{}:{}{}", line.substr(0, end), name, value, line.substr(end));
}

}  // namespace trireme::tokenizer
