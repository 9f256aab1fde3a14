#include "convert/shell/follower.hpp"

#include <fnmatch.h>
#include <regex.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

namespace trireme::convert::shell {
namespace {

using Words = std::vector<std::string>;
using Number = std::optional<std::int64_t>;

Number whole(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\n");
  text.remove_prefix(std::min(first, text.size()));
  text = text.substr(0, text.find_last_not_of(" \t\n") + 1);
  if (text.starts_with('+')) text.remove_prefix(1);
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end ? std::optional(value) : std::nullopt;
}

Status compare(Number a, std::string_view operation, Number b) {
  if (!a || !b) return std::nullopt;
  if (operation == "-eq") return *a == *b;
  if (operation == "-ne") return *a != *b;
  if (operation == "-lt") return *a < *b;
  if (operation == "-le") return *a <= *b;
  if (operation == "-gt") return *a > *b;
  if (operation == "-ge") return *a >= *b;
  return std::nullopt;
}

bool is_binary(const std::string& word, bool raw) {
  constexpr std::string_view kBoth[] = {"=",   "==",  "!=",  "<",   ">",   "-eq", "-ne",
                                        "-lt", "-le", "-gt", "-ge", "-nt", "-ot", "-ef"};
  return (raw && word == "=~") ||
         std::find(std::begin(kBoth), std::end(kBoth), word) != std::end(kBoth);
}

bool is_unary(const std::string& word) {
  return word.size() == 2 && word[0] == '-' &&
         std::string_view("abcdefghknprstuvwxzGLNOSR").find(word[1]) != kNone;
}

// Whether `text` is the mark of one unknown variable, `$NAME` or `${NAME}`.
bool is_unknown_variable(std::string_view text) {
  if (!text.starts_with(kUnknownBegin) || text.find(kUnknownEnd) + 1 != text.size()) return false;
  std::string_view name = text.substr(1, text.size() - 2);
  if (name.starts_with("${") && name.ends_with("}"))
    name = name.substr(2, name.size() - 3);
  else if (name.starts_with("$"))
    name.remove_prefix(1);
  return !name.empty() && std::all_of(name.begin(), name.end(), is_name);
}

Status inverted(Status status) { return status ? Status(!*status) : status; }

// Recursive descent over the words of a condition.
class Condition {
 public:
  Condition(const Words& words, bool raw, const Surroundings& surroundings)
      : words_(words), raw_(raw), surroundings_(surroundings) {}

  Verdict read() {
    // `[ ]` fails.
    if (words_.empty()) return {raw_ ? Status() : Status(false)};
    const Status status = either();
    if (at_ != words_.size() || fails_) return {};
    return {status, presumed_ && status};
  }

 private:
  bool sees(std::string_view word) const { return at_ < words_.size() && words_[at_] == word; }
  bool take(std::string_view word) {
    if (!sees(word)) return false;
    ++at_;
    return true;
  }
  // The number of words from here on.
  std::size_t left() const { return words_.size() - at_; }

  Status either() {
    Status status = both();
    while (!fails_ && take(raw_ ? "||" : "-o")) {
      const bool outer = std::exchange(skips_, skips_ || status == Status(true));
      const Status right = both();
      skips_ = outer;
      if (status == Status(true) || right == Status(true))
        status = true;
      else if (!status || !right)
        status = std::nullopt;
    }
    return status;
  }

  Status both() {
    Status status = negation();
    while (!fails_ && take(raw_ ? "&&" : "-a")) {
      const bool outer = std::exchange(skips_, skips_ || status == Status(false));
      const Status right = negation();
      skips_ = outer;
      if (status == Status(false) || right == Status(false))
        status = false;
      else if (!status || !right)
        status = std::nullopt;
    }
    return status;
  }

  Status negation() {
    // `[ ! = x ]` compares.
    const bool compares = left() == 3 && is_binary(words_[at_ + 1], raw_);
    if (!sees("!") || compares || left() < 2) return primary();
    ++at_;
    const bool outer = std::exchange(inverts_, true);
    const Status status = negation();
    inverts_ = outer;
    return inverted(status);
  }

  Status primary() {
    if (left() == 0 || ++depth_ > kMaxNesting) fails_ = true;
    if (fails_) return {};
    if (left() >= 3 && is_binary(words_[at_ + 1], raw_)) {
      const std::size_t first = at_;
      at_ += 3;
      return skips_ ? Status() : binary(words_[first], words_[first + 1], words_[first + 2]);
    }
    if (left() >= 3 && take("(")) {
      const Status status = either();
      if (!take(")")) fails_ = true;
      return status;
    }
    if (left() >= 2 && is_unary(words_[at_])) {
      const std::size_t first = at_;
      at_ += 2;
      return skips_ ? Status() : unary(words_[first][1], words_[first + 1]);
    }
    const std::string text = expanded(words_[at_++]);
    return has_unknown(text) ? Status() : Status(!text.empty());
  }

  std::string expanded(const std::string& word) {
    return raw_ && !skips_ ? surroundings_.expander().text(word) : word;
  }

  Status unary(char kind, const std::string& word) {
    const std::string text = expanded(word);
    if (kind == 'z' || kind == 'n') {
      if (is_unknown_variable(text) && !inverts_) {
        presumed_ = true;
        return kind == 'z';
      }
      if (!has_unknown(text)) return text.empty() == (kind == 'z');
      // A text with a known part is not empty.
      const bool has_text = text.front() != kUnknownBegin || text.back() != kUnknownEnd;
      return has_text ? Status(kind == 'n') : std::nullopt;
    }
    const bool is_file = std::string_view("edfrsx").find(kind) != kNone;
    return is_file && !has_unknown(text) ? surroundings_.has_file(text, kind) : std::nullopt;
  }

  Status binary(const std::string& left, const std::string& operation, const std::string& right) {
    if (raw_ && operation.starts_with('-') && operation.size() == 3)
      return compare(surroundings_.expander().value_of(left), operation,
                     surroundings_.expander().value_of(right));
    const std::string a = expanded(left);
    if (raw_ && operation == "=~") return matches_expression(a, right);
    const bool equals = operation == "=" || operation == "==";
    if (raw_ && (equals || operation == "!=")) {
      const Status same = matches_pattern(surroundings_.expander().pattern(right), a);
      return equals ? same : inverted(same);
    }
    const std::string b = expanded(right);
    if (has_unknown(a) || has_unknown(b)) return std::nullopt;
    if (equals) return a == b;
    if (operation == "!=") return a != b;
    if (operation == "<") return a < b;
    if (operation == ">") return a > b;
    return compare(whole(a), operation, whole(b));
  }

  Status matches_expression(const std::string& subject, const std::string& raw) {
    const std::string pattern = surroundings_.expander().pattern(raw, /*is_regex=*/true);
    if (has_unknown(subject) || has_unknown(pattern)) {
      surroundings_.matched({unknown("$BASH_REMATCH")});
      return std::nullopt;
    }
    regex_t compiled;
    if (::regcomp(&compiled, pattern.c_str(), REG_EXTENDED) != 0) return std::nullopt;
    std::vector<regmatch_t> parts(compiled.re_nsub + 1);
    const bool matches = ::regexec(&compiled, subject.c_str(), parts.size(), parts.data(), 0) == 0;
    ::regfree(&compiled);
    Words texts;
    for (const regmatch_t& part : parts)
      texts.push_back(part.rm_so < 0 || !matches
                          ? ""
                          : subject.substr(static_cast<std::size_t>(part.rm_so),
                                           static_cast<std::size_t>(part.rm_eo - part.rm_so)));
    surroundings_.matched(matches ? texts : Words());
    return matches;
  }

  const Words& words_;
  bool raw_;
  const Surroundings& surroundings_;
  std::size_t at_ = 0;
  int depth_ = 0;
  bool fails_ = false;
  bool presumed_ = false;
  bool inverts_ = false;
  bool skips_ = false;  // the operand is not evaluated
};

}  // namespace

Verdict test(const Words& words, const Surroundings& surroundings) {
  return Condition(words, /*raw=*/false, surroundings).read();
}

Verdict test_raw(const Words& words, const Surroundings& surroundings) {
  return Condition(words, /*raw=*/true, surroundings).read();
}

Status matches_pattern(const std::string& pattern, const std::string& subject) {
  if (pattern == "*") return true;
  if (has_unknown(pattern) || has_unknown(subject)) return std::nullopt;
  return ::fnmatch(pattern.c_str(), subject.c_str(), 0) == 0;
}

bool names_arguments(const Words& words) {
  const auto is_argument = [](std::string_view name) {
    // `${#A}` is the length of A.
    if (name.starts_with("#")) return name.size() == 1 || !is_name(name[1]);
    return !name.empty() && std::string_view("@*123456789").find(name[0]) != kNone;
  };
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
    for (std::size_t at = word.find('$'); at != kNone; at = word.find('$', at + 1)) {
      const std::size_t name = std::min(word.find_first_not_of("${", at), word.size());
      if (is_argument(std::string_view(word).substr(name))) return true;
    }
    return word == "getopts";
  });
}

}  // namespace trireme::convert::shell
