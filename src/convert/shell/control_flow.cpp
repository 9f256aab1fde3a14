// Which commands of a script run: lists, branches, patterns of a case.
#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

#include "convert/shell/follower.hpp"
#include "core/error.hpp"

namespace trireme::convert::shell {
namespace {

// Whether `command` begins a block that follow_block() runs.
bool opens_block(const Command& command) {
  return !command.words.empty() &&
         is_one_of(command.words[0], {"{", "(", "for", "select", "while", "until"});
}

// Whether `command` begins an `if` or a `case`.
bool opens_branches(const Command& command) {
  return !command.words.empty() && is_one_of(command.words[0], {"if", "case"});
}

}  // namespace

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

Status Branches::close() {
  if (frames_.empty()) return true;
  const Frame frame = frames_.back();
  frames_.pop_back();
  return frame.outer == Mode::skip ? Status(true) : frame.done;
}

void Follower::follow_commands(CommandSpan commands) {
  if (++depth_ > kMaxDepth) throw DataError("{}: the script calls itself", file_);
  follow_list(commands);
  --depth_;
}

void Follower::follow_list(CommandSpan commands) {
  for (std::size_t i = 0; i < commands.size() && leaves_ == Leaves::nothing; ++i) {
    if (++followed_ > kMaxCommands)
      throw DataError("{}: the script runs more than {} commands", file_, kMaxCommands);
    Command command = commands[i];
    inverts_ = executes_ = false;
    const bool chained = command.link == Link::if_succeeded || command.link == Link::if_failed;
    if (chained && opens_branches(command) && !runs_after(command)) {
      i = end_of_block(command, commands, i);
      continue;
    }
    const bool is_all = is_keyword(command);
    if (const auto pattern = pattern_after(commands, i)) {
      branches_.choose(matches_case(commands, i, *pattern));
      i = *pattern;
      continue;
    }
    if (is_all || (command.words.empty() && !command.here)) continue;
    if (!command.words.empty() && command.words[0] == "function") {
      i = define_function(std::move(command), commands, i);
      continue;
    }
    if (opens_block(command)) {
      i = follow_block(std::move(command), commands, i);
      continue;
    }
    const bool inverts = inverts_, executes = executes_;
    if (!runs_after(command)) continue;
    const bool is_piped = command.link == Link::pipe || command.background ||
                          (i + 1 < commands.size() && commands[i + 1].link == Link::pipe);
    if (is_piped) {
      // A pipe runs its commands in subshells.
      State before = state();
      follow_one(command);
      restore(std::move(before));
      if (leaves_ != Leaves::nothing) leaves_ = Leaves::nothing;
    } else {
      follow_one(command);
    }
    if (inverts && status_) status_ = !*status_;
    // The program of `exec` replaces the shell.
    if (executes && !command.words.empty() && mode_ == Mode::run) leaves_ = Leaves::script;
  }
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
    } else if (word == "fi" || word == "esac") {
      // Where no branch was taken, the block succeeds.
      const Status taken = branches_.close();
      if (taken == Status(false)) status_ = true;
      if (!taken) status_ = std::nullopt;
      if (taken != Status(true)) assumed_ = presumed_ = false;
      return true;
    } else if (word == "case") {
      branches_.open_case(words.size() > 1 ? expander().text(words[1]) : "");
      return true;
    } else if (word == "!") {
      inverts_ = !inverts_;
    } else if (word == "exec") {
      executes_ = true;
    } else if (!is_one_of(word, {"}", ")", "do", "done", "time", "nohup"})) {
      return false;
    }
    // The command after such a keyword starts a new list.
    if (!is_one_of(word, {"!", "time", "exec", "nohup"})) command.link = Link::next;
    words.erase(words.begin());
  }
  return true;
}

// The last of the commands that form the pattern `a | b)` of a case, starting at commands[at].
std::optional<std::size_t> Follower::pattern_after(CommandSpan commands, std::size_t at) const {
  if (!branches_.subject()) return std::nullopt;
  while (!commands[at].pattern && at + 1 < commands.size() && commands[at + 1].link == Link::pipe)
    ++at;
  return commands[at].pattern ? std::optional(at) : std::nullopt;
}

Status Follower::matches_case(CommandSpan commands, std::size_t first, std::size_t last) {
  Status any = false;
  for (std::size_t i = first; i <= last; ++i) {
    if (commands[i].words.empty()) continue;
    const Status one =
        matches_pattern(expander().pattern(commands[i].words.back()), *branches_.subject());
    if (one == Status(true)) return true;
    if (!one) any = std::nullopt;
  }
  return any;
}

// Whether `command` runs, given its branch and the previous status; sets mode_.
bool Follower::runs_after(const Command& command) {
  mode_ = branches_.mode();
  line_ = command.line;
  const bool chained = command.link == Link::if_succeeded || command.link == Link::if_failed;
  // The first command of a pipe decides whether the others run.
  if (command.link == Link::pipe) {
    mode_ = pipe_mode_;
    return mode_ != Mode::skip;
  }
  pipe_mode_ = Mode::skip;
  if (chained && status_ && *status_ != (command.link == Link::if_succeeded)) return false;
  if (chained && !status_ && mode_ != Mode::skip) mode_ = Mode::maybe;
  if (chained && presumed_ && mode_ == Mode::run) mode_ = Mode::presumed;
  pipe_mode_ = mode_;
  return mode_ != Mode::skip;
}

Run follow(std::string_view text, const std::filesystem::path& file, const Definitions& definitions,
           const std::vector<std::string>& arguments) {
  Follower follower(file, definitions, arguments);
  follower.follow_text(text);
  return std::move(follower.run);
}

}  // namespace trireme::convert::shell
