// Loops. One whose conditions are known is followed pass by pass. Of another one pass is followed,
// and what it changes is unknown afterwards.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "convert/shell/follower.hpp"

namespace trireme::convert::shell {
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
