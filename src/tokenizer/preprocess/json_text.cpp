#include "tokenizer/preprocess/json_text.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/error.hpp"

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
    // The library's message has its own name and a place before the reason.
    const std::string_view message = exception.what();
    const std::size_t place_end = message.find(": ");
    error = fmt::format("not JSON at byte {}: {}", position,
                        message.substr(place_end == std::string_view::npos ? 0 : place_end + 2));
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

/// `line` with a number of the same length for every NaN, Infinity and -Infinity outside of
/// strings.
std::string without_words_for_numbers(std::string_view line) {
  constexpr std::array<std::string_view, 3> kWords = {"NaN", "-Infinity", "Infinity"};
  std::string repaired;
  bool in_string = false;
  while (!line.empty()) {
    const auto* word = std::ranges::find_if(
        kWords, [&](std::string_view candidate) { return line.starts_with(candidate); });
    if (!in_string && word != kWords.end()) {
      repaired += fmt::format("{:^{}}", 0, word->size());
      line.remove_prefix(word->size());
      continue;
    }
    if (line[0] == '"') in_string = !in_string;
    const std::size_t taken = std::min<std::size_t>(line.size(), line[0] == '\\' ? 2 : 1);
    repaired += line.substr(0, taken);
    line.remove_prefix(taken);
  }
  return repaired;
}

/// What is found under `key`, or `error`.
FindKey look_up(std::string_view line, const std::string& key) {
  FindKey found(key);
  if (nlohmann::json::sax_parse(line.begin(), line.end(), &found)) return found;
  // Such words are so rare that the usual line need not be searched for them.
  FindKey repaired(key);
  nlohmann::json::sax_parse(without_words_for_numbers(line), &repaired);
  return repaired;
}

}  // namespace

std::string json_text(std::string_view line, const std::string& key, const std::string& place) {
  FindKey found = look_up(line, key);
  if (!found.error.empty()) throw DataError("{}: {}", place, found.error);
  if (!found.root_is_object()) throw DataError("{}: not a JSON object", place);
  if (!found.kind) throw DataError("{}: there is no key '{}'", place, key);
  if (!found.text) throw DataError("{}: '{}' is {}, not a string", place, key, found.kind);
  return std::move(*found.text);
}

bool is_json_object(std::string_view line) {
  const std::string no_key;
  const FindKey found = look_up(line, no_key);
  return found.error.empty() && found.root_is_object();
}

}  // namespace trireme::tokenizer
