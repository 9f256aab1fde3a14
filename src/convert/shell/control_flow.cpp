// Which commands of a script run: tests, branches, loops, functions.
#include <fnmatch.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <utility>

#include "convert/shell/follower.hpp"
#include "core/error.hpp"

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

Status matches_pattern(const std::string& pattern, const std::string& subject) {
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

void Branches::choose(Status matches) {
  Frame& frame = frames_.back();
  if (frame.outer == Mode::skip) return;
  if (frame.done == Status(true)) {
    frame.mode = Mode::skip;
  } else if (!matches) {
    frame.mode = weaker(frame.outer);
    frame.done = std::nullopt;
  } else if (!*matches) {
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

void Follower::follow_commands(const Commands& commands) {
  if (++depth_ > kMaxDepth) throw DataError("{}: the script calls itself", file_);
  for (std::size_t i = 0; i < commands.size() && !stopped_; ++i) {
    if (++followed_ > kMaxCommands)
      throw DataError("{}: the script runs more than {} commands", file_, kMaxCommands);
    Command command = commands[i];
    if (!command.words.empty() && command.words[0] == "function") {
      i = define_function(commands, i);
      continue;
    }
    inverts_ = false;
    const bool is_all = is_keyword(command);
    if (const auto pattern = pattern_after(commands, i)) {
      branches_.choose(matches_case(commands, i, *pattern));
      i = *pattern;
      continue;
    }
    if (is_all || (command.words.empty() && !command.here)) continue;
    const bool inverts = inverts_;
    if (!runs_after(command)) continue;
    follow_one(command);
    if (inverts && status_) status_ = !*status_;
  }
  --depth_;
}

// Stores the body of the function whose head is commands[at]; returns the index of its `}`.
std::size_t Follower::define_function(const Commands& commands, std::size_t at) {
  Command head = commands[at];
  if (head.words.size() < 2) return at;
  const std::string name = head.words[1].substr(0, head.words[1].find('('));
  head.words.erase(head.words.begin(), head.words.begin() + 2);
  Commands body;
  int depth = 0;
  for (std::size_t i = at; i < commands.size(); ++i) {
    const Command& command = i == at ? head : commands[i];
    if (command.words.empty()) continue;
    if (command.words[0] == "{") ++depth;
    if (command.words[0] == "}" && --depth == 0) {
      functions_[name] = std::move(body);
      return i;
    }
    body.push_back(command);
  }
  throw DataError("{}:{}: the function '{}' is not closed", file_, commands[at].line, name);
}

// Removes leading keywords from `command`; true if nothing remains.
bool Follower::is_keyword(Command& command) {
  auto& words = command.words;
  while (!words.empty()) {
    const std::string& word = words[0];
    if (word == "if") {
      branches_.open_if();
      status_ = true;
    } else if (word == "then") {
      // A condition on a program is undecided; the command after its `||` does not run.
      branches_.then(assumed_ ? Status() : status_, presumed_);
    } else if (word == "elif" || word == "else") {
      branches_.otherwise();
    } else if (word == "fi" || word == "done" || word == "esac") {
      branches_.close();
      return true;
    } else if (word == "case") {
      branches_.open_case(words.size() > 1 ? expander().text(words[1]) : "");
      return true;
    } else if (word == "for" || word == "select") {
      branches_.open_loop();
      loop_over(command);
      return true;
    } else if (word == "while" || word == "until") {
      branches_.open_loop();
      loop_ends_on_ = word == "until";
      asks_for_arguments_ = false;
      status_ = Status();
    } else if (word == "do") {
      branches_.enter(enters_loop());
      loop_ends_on_ = Status();
    } else if (word == "!") {
      inverts_ = !inverts_;
    } else if (!is_one_of(word, {"{", "}", "time", "exec", "nohup"})) {
      return false;
    }
    words.erase(words.begin());
    // The command after the keyword starts a new list.
    command.link = Link::next;
  }
  return true;
}

// The last of the commands that form the pattern `a | b)` of a case, starting at commands[at].
std::optional<std::size_t> Follower::pattern_after(const Commands& commands, std::size_t at) const {
  if (!branches_.subject()) return std::nullopt;
  while (!commands[at].pattern && at + 1 < commands.size() && commands[at + 1].link == Link::pipe)
    ++at;
  return commands[at].pattern ? std::optional(at) : std::nullopt;
}

Status Follower::matches_case(const Commands& commands, std::size_t first, std::size_t last) {
  Status any = false;
  for (std::size_t i = first; i <= last; ++i) {
    if (commands[i].words.empty()) continue;
    const Status one =
        matches_pattern(expander().text(commands[i].words.back()), *branches_.subject());
    if (one == Status(true)) return true;
    if (!one) any = std::nullopt;
  }
  return any;
}

// Whether `command` runs, given its branch and the previous status; sets mode_.
bool Follower::runs_after(const Command& command) {
  mode_ = branches_.mode();
  const bool chained = command.link == Link::if_succeeded || command.link == Link::if_failed;
  if (chained && status_ && *status_ != (command.link == Link::if_succeeded)) return false;
  if (chained && !status_ && mode_ != Mode::skip) mode_ = Mode::maybe;
  if (chained && presumed_ && mode_ == Mode::run) mode_ = Mode::presumed;
  return mode_ != Mode::skip;
}

// Whether the loop body after this `do` runs at all. Unknown arguments count as none: a loop over
// options does not run.
bool Follower::enters_loop() const {
  if (!loop_ends_on_) return true;  // of `for`
  const bool unknown = !status_ || assumed_;
  return !asks_for_arguments_ && (unknown || *status_ != *loop_ends_on_);
}

void Follower::loop_over(const Command& command) {
  if (command.words.size() < 2) return;
  const std::string& name = command.words[1];
  std::vector<std::string> values;
  if (command.words.size() > 3) values = expand_all(command.words, 3);
  // `for NAME` alone iterates over the arguments, like `in "$@"`.
  branches_.enter(!values.empty() || variables_.contains("@"));
  variables_.set(name, {values.size() == 1 ? values[0] : unknown("$" + name)});
}

Run follow(std::string_view text, const std::filesystem::path& file, const Definitions& definitions,
           const std::vector<std::string>& arguments) {
  Follower follower(file, definitions, arguments);
  follower.follow_text(text);
  return std::move(follower.run);
}

}  // namespace trireme::convert::shell
