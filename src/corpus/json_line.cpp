// One key of a JSON line, found and replaced in the text of the line: a parser's numbers would lose
// digits, and its strings their escapes.
#include <algorithm>
#include <optional>

#include "core/error.hpp"
#include "corpus/stream.hpp"

namespace trireme::corpus {
namespace {

using nlohmann::json;

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

/// The last value under `key` of the object, as it stands in `line`; nothing without such a key.
std::optional<std::string_view> value_in(std::string_view line, const std::string& key) {
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
      here = json::parse(last_string, nullptr, /*allow_exceptions=*/false) == key;
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

}  // namespace

std::string Document::field(const std::string& key) const {
  const auto value = value_in(line, key);
  if (!value || !value->starts_with('"')) return "";
  const json parsed = json::parse(*value, nullptr, /*allow_exceptions=*/false);
  return parsed.is_string() ? parsed.get<std::string>() : "";
}

std::string with_field(std::string_view line, const std::string& key, const json& value) {
  constexpr auto kReplace = json::error_handler_t::replace;
  const std::string text = value.dump(-1, ' ', false, kReplace);
  if (const auto found = value_in(line, key)) {
    const auto begin = static_cast<std::size_t>(found->data() - line.data());
    return fmt::format("{}{}{}", line.substr(0, begin), text, line.substr(begin + found->size()));
  }
  const std::size_t end = line.rfind('}');
  return fmt::format("{},{}:{}{}", line.substr(0, end), json(key).dump(-1, ' ', false, kReplace),
                     text, line.substr(end));
}

std::string json_line(const Document& document, const std::string& key, const std::string& text) {
  return (text == document.text ? document.line : with_field(document.line, key, text)) + "\n";
}

}  // namespace trireme::corpus
