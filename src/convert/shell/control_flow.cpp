// Which commands of a script run: lists, branches, patterns of a case; groups, subshells,
// functions, and where a block ends.
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

// ---- blocks

namespace {

// The change of the number of open blocks by the keywords that `words` begin with.
int depth_change(const std::vector<std::string>& words) {
  int change = 0;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (is_one_of(word, {"if", "case", "while", "until", "for", "select", "{", "("}))
      ++change;
    else if (is_one_of(word, {"fi", "esac", "done", "}", ")"}))
      --change;
    else if (word == "function")
      ++i;
    else if (!is_one_of(word, {"then", "elif", "else", "do", "!", "time", "exec", "nohup"}))
      break;
    // The words after these are no commands.
    if (is_one_of(word, {"case", "for", "select"})) break;
  }
  return change;
}

}  // namespace

std::size_t end_of_block(const Command& head, std::span<const Command> commands, std::size_t at) {
  int depth = depth_change(head.words);
  for (std::size_t i = at + 1; i < commands.size(); ++i) {
    // The words of a pattern are no keywords, except those of `case WORD in PATTERN)`.
    const bool is_pattern = commands[i].pattern && commands[i].words.size() < 4;
    if (!is_pattern) depth += depth_change(commands[i].words);
    if (depth <= 0) return i;
  }
  return commands.size();
}

// Stores the body of the function that `head`, the rest of commands[at], begins; returns the index
// of its end.
std::size_t Follower::define_function(Command head, CommandSpan commands, std::size_t at) {
  if (head.words.size() < 2) return at;
  const std::string name = head.words[1].substr(0, head.words[1].find('('));
  head.words.erase(head.words.begin(), head.words.begin() + 2);
  // The body may begin on a line after the head.
  std::size_t first = at;
  if (head.words.empty() && at + 1 < commands.size()) head = commands[++first];
  const std::size_t end = end_of_block(head, commands, first);
  if (end == commands.size() || depth_change(head.words) <= 0)
    throw DataError("{}:{}: the function '{}' is not closed", file_, commands[at].line, name);
  if (branches_.mode() == Mode::skip) return end;
  Commands body{head};
  body.insert(body.end(), commands.begin() + static_cast<std::ptrdiff_t>(first) + 1,
              commands.begin() + static_cast<std::ptrdiff_t>(end) + 1);
  functions_[name] = std::move(body);
  return end;
}

// Runs the block that `head`, the rest of commands[at], begins: a group, a subshell or a loop.
// Returns the index of its end. An `if` or `case` is only passed over where its list skips it.
std::size_t Follower::follow_block(Command head, CommandSpan commands, std::size_t at) {
  const std::size_t end = end_of_block(head, commands, at);
  line_ = head.line;
  const bool inverts = inverts_;
  if (!runs_after(head)) return end;
  const bool is_piped = head.link == Link::pipe ||
                        (end < commands.size() && commands[end].background) ||
                        (end + 1 < commands.size() && commands[end + 1].link == Link::pipe);
  if (++blocks_ > kMaxBlocks)
    throw DataError("{}:{}: blocks are nested more than {} deep", file_, head.line, kMaxBlocks);
  const std::size_t depth = branches_.depth();
  const Mode pipe_mode = pipe_mode_;
  branches_.open_block(mode_);
  const std::string opener = head.words[0];
  const CommandSpan rest = commands.subspan(at + 1, end - at - 1);
  if (opener == "{" || opener == "(") {
    head.words.erase(head.words.begin());
    head.link = Link::next;
    Commands body{std::move(head)};
    body.insert(body.end(), rest.begin(), rest.end());
    follow_group(body, is_piped || opener == "(");
  } else {
    const Loop loop = loop_of(std::move(head), rest);
    if (is_piped) {
      State before = state();
      follow_loop(loop);
      restore(std::move(before));
    } else {
      follow_loop(loop);
    }
  }
  branches_.cut(depth);
  --blocks_;
  pipe_mode_ = pipe_mode;
  inverts_ = false;
  if (inverts && status_) status_ = !*status_;
  return end;
}

void Follower::follow_group(CommandSpan body, bool is_subshell) {
  if (!is_subshell) return follow_list(body);
  State before = state();
  const int loops = std::exchange(loops_, 0);
  follow_list(body);
  // `exit` leaves the subshell only.
  leaves_ = Leaves::nothing;
  loops_ = loops;
  restore(std::move(before));
}

void Follower::restore(State state) {
  variables_ = std::move(state.variables);
  functions_ = std::move(state.functions);
  associative_ = std::move(state.associative);
  integers_ = std::move(state.integers);
}

void Follower::call(const Commands& body, const std::vector<std::string>& words) {
  Values outer = variables_.replace_arguments(words);
  const Mode mode = mode_, pipe_mode = pipe_mode_;
  const Branches branches = std::exchange(branches_, Branches());
  branches_.open_block(mode);
  const int loops = std::exchange(loops_, 0);
  const int line = line_;
  locals_.emplace_back();
  ++returns_;
  follow_commands(body);
  --returns_;
  for (auto& [name, values] : locals_.back()) variables_.put_back(name, std::move(values));
  locals_.pop_back();
  if (leaves_ == Leaves::function) leaves_ = Leaves::nothing;
  loops_ = loops;
  line_ = line;
  branches_ = branches;
  mode_ = mode;
  pipe_mode_ = pipe_mode;
  variables_.restore_arguments(std::move(outer));
}

// `exit`, `return`, `break` and `continue`.
void Follower::leave(const std::vector<std::string>& words) {
  const std::string& name = words[0];
  const std::string value = words.size() > 1 ? words[1] : "";
  const bool is_number =
      !value.empty() && value.size() < 4 && value.find_first_not_of("0123456789") == kNone;
  if (name == "exit") {
    // A script may end with a usage message where a variable is not set.
    if (mode_ != Mode::run) return;
    leaves_ = Leaves::script;
    if (!value.empty()) status_ = is_number ? Status(std::stoi(value) == 0) : std::nullopt;
  } else if (name == "return") {
    if (returns_ == 0) return;
    if (mode_ == Mode::maybe) return branches_.weaken();
    leaves_ = Leaves::function;
    if (!value.empty()) status_ = is_number ? Status(std::stoi(value) == 0) : std::nullopt;
  } else if (loops_ > 0) {
    undecided_ |= mode_ == Mode::maybe || (!value.empty() && !is_number);
    if (mode_ == Mode::maybe) return;
    leaves_ = name == "break" ? Leaves::loop : Leaves::pass;
    leaves_loops_ = is_number ? std::stoi(value) : 1;
  }
}

}  // namespace trireme::convert::shell
