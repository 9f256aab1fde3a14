#include "convert/shell/script.hpp"

#include <utility>

#include "convert/shell/follower.hpp"
#include "convert/shell/unknown.hpp"
#include "core/error.hpp"

namespace trireme::convert::shell {

void Follower::follow_commands(const Commands& commands) {
  if (++depth_ > kDeepest) throw DataError("{}: it calls itself", file_);
  for (std::size_t i = 0; i < commands.size() && !stopped_; ++i) {
    if (++followed_ > kMostCommands) throw DataError("{}: it does not come to an end", file_);
    Command command = commands[i];
    if (!command.words.empty() && command.words[0] == "function") {
      i = define_function(commands, i);
      continue;
    }
    inverts_ = false;
    const bool is_all = is_keyword(command);
    if (const auto pattern = pattern_after(commands, i)) {
      branches_.choose(fits_case(commands, i, *pattern));
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

// Keeps the body of the function whose head is commands[at]; returns the place of its `}`.
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

// Takes the words of control off the front of `command`; true when it is nothing else.
bool Follower::is_keyword(Command& command) {
  auto& words = command.words;
  while (!words.empty()) {
    const std::string& word = words[0];
    if (word == "if") {
      branches_.open_if();
      status_ = true;
    } else if (word == "then") {
      // What depends on a program stays open; what follows its `||` does not run.
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
    // What follows the word begins anew.
    command.link = Link::next;
  }
  return true;
}

// The last of the commands that are the pattern `a | b)` of a case and begin at commands[at].
std::optional<std::size_t> Follower::pattern_after(const Commands& commands, std::size_t at) const {
  if (!branches_.subject()) return std::nullopt;
  while (!commands[at].pattern && at + 1 < commands.size() && commands[at + 1].link == Link::pipe)
    ++at;
  return commands[at].pattern ? std::optional(at) : std::nullopt;
}

Status Follower::fits_case(const Commands& commands, std::size_t first, std::size_t last) {
  Status any = false;
  for (std::size_t i = first; i <= last; ++i) {
    if (commands[i].words.empty()) continue;
    const Status one = fits(expander().text(commands[i].words.back()), *branches_.subject());
    if (one == Status(true)) return true;
    if (!one) any = std::nullopt;
  }
  return any;
}

// Whether `command` runs, given the branch it is in and how the one before ended; sets mode_.
bool Follower::runs_after(const Command& command) {
  mode_ = branches_.mode();
  const bool chained = command.link == Link::if_succeeded || command.link == Link::if_failed;
  if (chained && status_ && *status_ != (command.link == Link::if_succeeded)) return false;
  if (chained && !status_ && mode_ != Mode::skip) mode_ = Mode::maybe;
  if (chained && presumed_ && mode_ == Mode::run) mode_ = Mode::presumed;
  return mode_ != Mode::skip;
}

// Whether the body of the loop whose `do` comes now runs at all. Arguments that nobody has given
// are none: a loop that reads options finds none to read.
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
  // `for NAME` alone goes over the arguments, as `in "$@"` does.
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
