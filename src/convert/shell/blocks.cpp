// Blocks of commands: groups, subshells, functions, and where a block ends.
#include <algorithm>
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

}  // namespace trireme::convert::shell
