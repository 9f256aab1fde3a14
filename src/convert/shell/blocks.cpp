// Blocks of commands: groups, subshells, functions, loops, and where a block ends.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "convert/shell/follower.hpp"
#include "core/error.hpp"

namespace trireme::convert::shell {

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

// ---- loops
//
// One whose conditions are known is followed pass by pass. Of another one pass is followed, and
// what it changes is unknown afterwards.

namespace {

bool same_commands(std::span<const RunCommand> left, std::span<const RunCommand> right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [](const auto& a, const auto& b) { return a.words == b.words; });
}

// Whether all of `value` is one mark, such as the output of a program: it may be several words.
bool is_mark(std::string_view value) {
  return value.starts_with(kUnknownBegin) && value.find(kUnknownEnd) + 1 == value.size();
}

// The parts of `a; b; c`.
std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ';')
      parts.emplace_back();
    else
      parts.back() += c;
  }
  parts.resize(3);
  // An empty condition holds.
  if (parts[1].find_first_not_of(" \t\n") == std::string::npos) parts[1] = "1";
  return parts;
}

}  // namespace

// Takes the loop apart that `head` begins; `rest` are the commands up to its `done`.
Follower::Loop Follower::loop_of(Command head, CommandSpan rest) {
  Loop loop;
  loop.line = head.line;
  const std::string opener = head.words[0];
  loop.until = opener == "until";
  if (opener == "while" || opener == "until") {
    head.words.erase(head.words.begin());
    head.link = Link::next;
    loop.condition.push_back(std::move(head));
  } else if (head.words.size() > 2 && head.words[1] == "((") {
    loop.steps = parts_of(head.words[2]);
    // `for ((a; b; c)) do` on one line.
    if (head.words.size() > 3) {
      Command begin = head;
      begin.words.erase(begin.words.begin(), begin.words.begin() + 3);
      loop.body.push_back(std::move(begin));
    }
  } else if (head.words.size() > 1) {
    loop.name = head.words[1];
    // `for NAME` alone iterates over the arguments, like `in "$@"`.
    const bool has_list = head.words.size() > 2 && head.words[2] == "in";
    loop.values = has_list ? expand_all(head.words, 3) : expand_all({"\"$@\""}, 0);
    if (opener == "select") loop.values = {unknown("$" + loop.name)};
  }
  const auto begin = std::find_if(rest.begin(), rest.end(), [](const Command& command) {
    return !command.words.empty() && (command.words[0] == "do" || command.words[0] == "{");
  });
  if (!loop.condition.empty()) loop.condition.insert(loop.condition.end(), rest.begin(), begin);
  loop.body.insert(loop.body.end(), loop.body.empty() ? begin : rest.begin(), rest.end());
  if (loop.body.empty()) return loop;
  loop.body[0].words.erase(loop.body[0].words.begin());
  loop.body[0].link = Link::next;
  return loop;
}

void Follower::follow_loop(const Loop& loop) {
  const std::set<std::string> outer_changed = variables_.take_changed();
  const State before = state();
  const std::size_t num_commands = run.commands.size();
  const auto files = run.files;
  const int line = line_;
  const std::size_t depth = branches_.depth();
  const bool outer_undecided = std::exchange(undecided_, false);
  ++loops_;
  if (!loop.steps.empty()) expander().value_of(loop.steps[0]);
  std::vector<std::size_t> starts;
  if (follow_passes(loop, starts)) {
    if (starts.size() > 1) merge_passes(loop, before, starts);
  } else {
    const std::set<std::string> changed = variables_.take_changed();
    restore(before);
    run.commands.resize(num_commands);
    run.files = files;
    leaves_ = Leaves::nothing;
    branches_.cut(depth);
    follow_undecided(loop, changed);
  }
  --loops_;
  undecided_ = outer_undecided;
  line_ = line;
  branches_.cut(depth);
  variables_.add_changed(outer_changed);
}

// Follows one pass of a loop that may have any number of them; `changed` are variables that its
// passes change. What the loop changes is unknown afterwards.
void Follower::follow_undecided(const Loop& loop, std::set<std::string> changed) {
  if (!loop.steps.empty()) expander().value_of(loop.steps[0]);
  if (enters(loop, 0) != Status(false)) follow_body(loop);
  const std::size_t num_commands = run.commands.size();
  const auto files = run.files;
  // A later pass, in which those are unknown, may change more.
  changed.merge(variables_.take_changed());
  for (std::size_t known = 0; known != changed.size();) {
    known = changed.size();
    leaves_ = Leaves::nothing;
    forget_changed(changed, loop.line);
    follow_body(loop);
    changed.merge(variables_.take_changed());
  }
  forget_changed(changed, loop.line);
  run.commands.resize(std::min(num_commands, run.commands.size()));
  run.files = files;
  leaves_ = Leaves::nothing;
  status_ = std::nullopt;
  assumed_ = presumed_ = false;
}

// Runs the passes of `loop`; `starts` gets the number of commands recorded before each. False if it
// cannot be told how many there are, or which commands they run.
bool Follower::follow_passes(const Loop& loop, std::vector<std::size_t>& starts) {
  const bool is_for = !loop.name.empty();
  if (is_for && std::any_of(loop.values.begin(), loop.values.end(), is_mark)) return false;
  Status last = true;
  for (std::size_t pass = 0;; ++pass) {
    const Values at_start = variables_.values();
    const std::size_t num_commands = run.commands.size();
    const Status runs = enters(loop, pass);
    if (leaves_ != Leaves::nothing) return true;
    if (runs == Status(false)) {
      status_ = last;
      return !undecided_;
    }
    if (!runs || pass >= kMaxPasses) return false;
    starts.push_back(num_commands);
    follow_body(loop);
    last = status_;
    if (leaves_ != Leaves::nothing && leaves_loop()) return !undecided_;
    // A loop whose variables stay as they are never ends.
    if (!loop.condition.empty() && variables_.values() == at_start) return false;
  }
}

// Whether pass number `pass` of `loop` runs; sets its variable.
Status Follower::enters(const Loop& loop, std::size_t pass) {
  mode_ = branches_.mode();
  if (!loop.name.empty()) {
    if (pass >= loop.values.size()) return false;
    variables_.set(loop.name, {loop.values[pass]});
    return true;
  }
  if (!loop.steps.empty()) {
    if (pass > 0) expander().value_of(loop.steps[2]);
    return expander().holds(loop.steps[1]);
  }
  asks_for_arguments_ = false;
  status_ = true;
  follow_list(loop.condition);
  // Unknown arguments count as none: a loop over options does not run.
  if (asks_for_arguments_) return false;
  if (!status_ || assumed_) return std::nullopt;
  return *status_ != loop.until;
}

void Follower::follow_body(const Loop& loop) {
  const std::size_t depth = branches_.depth();
  follow_list(loop.body);
  branches_.cut(depth);
}

// Whether the `break`, `continue`, `return` or `exit` just met leaves the loop.
bool Follower::leaves_loop() {
  if (leaves_ == Leaves::function || leaves_ == Leaves::script) return true;
  const bool ends = leaves_ == Leaves::loop || leaves_loops_ > 1;
  if (--leaves_loops_ <= 0 || loops_ == 1) leaves_ = Leaves::nothing;
  return ends;
}

// Makes the variables unknown that the loop in `line` changes.
void Follower::forget_changed(const std::set<std::string>& names, int line) {
  for (const std::string& name : names)
    if (name == "@")
      variables_.forget_arguments(unknown("$@"));
    else
      variables_.set(name, {unknown(fmt::format("${} (line {} sets it in a loop)", name, line))});
}

// Of passes that run different commands one is kept, in which what changes from pass to pass is
// unknown.
void Follower::merge_passes(const Loop& loop, const State& before,
                            const std::vector<std::size_t>& starts) {
  const std::span<const RunCommand> all(run.commands);
  const auto commands_of = [&](std::size_t pass) {
    const std::size_t end = pass + 1 < starts.size() ? starts[pass + 1] : all.size();
    return all.subspan(starts[pass], end - starts[pass]);
  };
  bool same = true;
  for (std::size_t pass = 1; pass < starts.size(); ++pass)
    same &= same_commands(commands_of(0), commands_of(pass));
  if (same) {
    run.commands.resize(starts[1]);
    return;
  }
  run.commands.resize(starts[0]);
  const auto files = run.files;
  const Status status = status_;
  const Leaves leaves = std::exchange(leaves_, Leaves::nothing);
  const std::set<std::string> changed = variables_.take_changed();
  State after = state();
  restore(before);
  forget_changed(changed, loop.line);
  if (!loop.name.empty()) variables_.set(loop.name, {unknown("$" + loop.name)});
  follow_body(loop);
  restore(std::move(after));
  run.files = files;
  status_ = status;
  leaves_ = leaves;
  undecided_ = false;
  variables_.add_changed(changed);
}

}  // namespace trireme::convert::shell
