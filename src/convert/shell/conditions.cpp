#include "convert/shell/conditions.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <string_view>

#include "convert/shell/unknown.hpp"

namespace trireme::convert::shell {
namespace {

std::optional<std::int64_t> whole(const std::string& text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end ? std::optional(value) : std::nullopt;
}

Status compare(const std::string& left, const std::string& operation, const std::string& right) {
  if (operation == "=" || operation == "==") return left == right;
  if (operation == "!=") return left != right;
  const auto a = whole(left), b = whole(right);
  if (!a || !b) return std::nullopt;
  if (operation == "-eq") return *a == *b;
  if (operation == "-ne") return *a != *b;
  if (operation == "-lt") return *a < *b;
  if (operation == "-le") return *a <= *b;
  if (operation == "-gt") return *a > *b;
  if (operation == "-ge") return *a >= *b;
  return std::nullopt;
}

}  // namespace

Status test(std::vector<std::string> words) {
  if (!words.empty() && (words.back() == "]" || words.back() == "]]")) words.pop_back();
  if (!words.empty()) words.erase(words.begin());
  if (std::any_of(words.begin(), words.end(), [](const auto& word) { return has_unknown(word); }))
    return std::nullopt;
  bool inverted = false;
  while (!words.empty() && words[0] == "!") {
    inverted = !inverted;
    words.erase(words.begin());
  }
  Status status;
  if (words.size() == 3)
    status = compare(words[0], words[1], words[2]);
  else if (words.size() == 2 && words[0] == "-z")
    status = words[1].empty();
  else if (words.size() == 2 && words[0] == "-n")
    status = !words[1].empty();
  else if (words.size() == 1)
    status = !words[0].empty() && words[0] != "-n";  // an empty, unquoted variable leaves no word
  else if (words.empty())
    status = false;
  if (status && inverted) status = !*status;
  return status;
}

Status presume(const std::vector<std::string>& words) {
  if (words.size() < 3 || (words[1] != "-z" && words[1] != "-n")) return std::nullopt;
  std::string_view name = words[2];
  if (!name.starts_with(kUnknownBegin) || name.find(kUnknownEnd) + 1 != name.size())
    return std::nullopt;
  name = name.substr(1, name.size() - 2);
  if (name.starts_with("${") && name.ends_with("}"))
    name = name.substr(2, name.size() - 3);
  else if (name.starts_with("$"))
    name.remove_prefix(1);
  const bool is_name = !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_';
  });
  return is_name ? Status(words[1] == "-z") : std::nullopt;
}

Status fits(const std::string& pattern, const std::string& subject) {
  if (pattern == "*") return true;
  if (has_unknown(pattern) || has_unknown(subject)) return std::nullopt;
  return ::fnmatch(pattern.c_str(), subject.c_str(), 0) == 0;
}

bool names_arguments(const std::vector<std::string>& words) {
  const auto is_argument = [](std::string_view name) {
    // `${#A}` is the length of A.
    if (name.starts_with("#"))
      return name.size() == 1 ||
             !(std::isalnum(static_cast<unsigned char>(name[1])) || name[1] == '_');
    return !name.empty() && std::string_view("@*123456789").find(name[0]) != std::string_view::npos;
  };
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
    for (std::size_t at = word.find('$'); at != std::string::npos; at = word.find('$', at + 1)) {
      const std::size_t name = std::min(word.find_first_not_of("${", at), word.size());
      if (is_argument(std::string_view(word).substr(name))) return true;
    }
    return word == "getopts";
  });
}

void Branches::then(Status status, bool presumed) {
  if (frames_.empty()) return;
  Frame& frame = frames_.back();
  if (frame.kind != Kind::condition || frame.mode == Mode::skip) return;
  if (!status) {
    frame.mode = weaker(frame.outer);
    frame.done = std::nullopt;
  } else if (!*status) {
    frame.mode = Mode::skip;
  } else {
    frame.mode = frame.done ? frame.outer : weaker(frame.outer);
    if (presumed && frame.mode == Mode::run) frame.mode = Mode::presumed;
    frame.done = true;
  }
}

void Branches::choose(Status fits) {
  Frame& frame = frames_.back();
  if (frame.outer == Mode::skip) return;
  if (frame.done == Status(true)) {
    frame.mode = Mode::skip;
  } else if (!fits) {
    frame.mode = weaker(frame.outer);
    frame.done = std::nullopt;
  } else if (!*fits) {
    frame.mode = Mode::skip;
  } else {
    frame.mode = frame.done ? frame.outer : weaker(frame.outer);
    frame.done = true;
  }
}

void Branches::otherwise() {
  if (frames_.empty() || frames_.back().kind != Kind::condition) return;
  Frame& frame = frames_.back();
  if (!frame.done)
    frame.mode = weaker(frame.outer);
  else
    frame.mode = *frame.done ? Mode::skip : frame.outer;
}

}  // namespace trireme::convert::shell
