// Which commands of a script run (lists, branches, patterns of a case), and the execution of one:
// assignments, tests, builtins, functions, programs.

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "convert/shell/follower.hpp"
#include "core/error.hpp"
#include "core/files.hpp"

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

// ---- one command

namespace fs = std::filesystem;

namespace {

// Whether `word` contains `$( ... )`, whose status is that of an assignment.
bool runs_program(const std::string& word) {
  return word.find("$(") != kNone ? word.find("$((") != word.find("$(") : word.find('`') != kNone;
}

// Whether the words of `command` from `first` on are expanded by the builtin.
bool is_unexpanded(const Command& command, std::size_t first) {
  return first < command.words.size() &&
         is_one_of(command.words[first],
                   {"((", "[[", "export", "declare", "local", "readonly", "typeset"});
}

}  // namespace

void Follower::follow_one(const Command& command) {
  std::size_t first = 0;
  while (first < command.words.size() && assignment_at(command.words[first])) ++first;
  assumed_ = false;
  presumed_ = false;
  asks_for_arguments_ |= !variables_.has_arguments() && names_arguments(command.words);
  const std::vector<std::string> words = is_unexpanded(command, first)
                                             ? std::vector<std::string>{command.words[first]}
                                             : expand_all(command.words, first);
  if (words.empty() || words[0] != "sed" || command.link != Link::pipe) piped_.reset();
  status_ = true;
  if (words.empty()) {
    // A here-document without a command, `NAME=<<END`, has no reader.
    for (std::size_t i = 0; i < first; ++i) assign(command.words[i]);
    assumed_ = std::any_of(command.words.begin(), command.words.end(), runs_program);
    return;
  }
  // Assignments before a command hold for that command. Its words are expanded without them.
  std::map<std::string, Values> outer;
  prefix_.clear();
  const bool declares = is_unexpanded(command, first);
  for (std::size_t i = 0; i < first && !declares; ++i) {
    const std::string name = command.words[i].substr(0, command.words[i].find_first_of("+=["));
    if (!outer.contains(name)) outer[name] = variables_.values_of(name);
    assign(command.words[i]);
    prefix_.push_back(name);
  }
  follow_simple(command, first, words);
  for (auto& [name, values] : outer) variables_.put_back(name, std::move(values));
}

// Runs `words`, the expanded words of `command`. The words of conditions and declarations, from
// `first` on, are expanded by these.
void Follower::follow_simple(const Command& command, std::size_t first,
                             std::vector<std::string> words) {
  const std::string name = words[0];
  if (name == "#SBATCH") {
    run.sbatch.insert(run.sbatch.end(), words.begin() + 1, words.end());
  } else if (name == "((") {
    status_ = expander().holds(command.words[first + 1]);
  } else if (name == "[[") {
    check({command.words.begin() + static_cast<std::ptrdiff_t>(first) + 1, command.words.end() - 1},
          /*raw=*/true);
  } else if (is_one_of(name, {"export", "declare", "local", "readonly", "typeset"})) {
    declare(command.words, first);
  } else if (const auto function = functions_.find(name); function != functions_.end()) {
    // The body may redefine the function.
    const Commands body = function->second;
    call(body, words);
  } else if (command.here && is_one_of(words.back(), {"bash", "sh"})) {
    // A shell that reads its commands from a here-document.
    words.pop_back();
    follow_shell(here_text(*command.here), words, {}, variables_.exported(prefix_));
  } else if (!is_builtin(words, command) && !is_quiet_builtin(words)) {
    record(std::move(words));
  }
}

bool Follower::is_builtin(const std::vector<std::string>& words, const Command& command) {
  const std::string& name = words[0];
  if (name == "[" || name == "test") {
    const bool closed = name == "[" && words.back() == "]";
    check({words.begin() + 1, words.end() - (closed ? 1 : 0)}, /*raw=*/false);
  } else if (name == "true" || name == ":") {
    status_ = true;
  } else if (name == "false") {
    status_ = false;
  } else if (is_one_of(name, {"exit", "return", "break", "continue"})) {
    leave(words);
  } else if (name == "source" || name == ".") {
    if (words.size() > 1) source(words);
  } else if (name == "eval") {
    std::string text;
    for (std::size_t i = 1; i < words.size(); ++i) text.append(words[i]).append(" ");
    follow_inner(text, {});
  } else if (name == "let") {
    let(words);
  } else if (name == "sed") {
    edit(words, command);
  } else if (name == "shift") {
    shift(words);
  } else if (name == "set") {
    set_options(words);
  } else if (name == "read") {
    read_here(words, command);
  } else if (name == "unset") {
    unset(words);
  } else if (is_one_of(name, {"mapfile", "readarray", "getopts"})) {
    forget({words.begin() + 1, words.end()});
    if (name == "getopts") forget({"OPTARG", "OPTIND"});
    status_ = std::nullopt;
  } else if (is_one_of(name, {"echo", "printf", "cat"})) {
    print(words, command);
  } else {
    return false;
  }
  return true;
}

// Builtins and programs that start no other program and set nothing.
bool Follower::is_quiet_builtin(const std::vector<std::string>& words) {
  if (!is_one_of(words[0], {"cd", "pushd", "popd", "mkdir", "cp", "rm", "module", "conda", "ulimit",
                            "trap", "wait", "sleep", "tee", "date", "shopt", "umask", "hash"}))
    return false;
  assumed_ = true;
  return true;
}

// The conditions `[ ... ]` and, with `raw`, `[[ ... ]]`.
void Follower::check(const std::vector<std::string>& words, bool raw) {
  const Surroundings surroundings{
      [this] { return expander(); },
      [this](const std::string& path, char kind) { return has_file(path, kind); },
      [this](std::vector<std::string> parts) { variables_.set("BASH_REMATCH", std::move(parts)); }};
  const Verdict verdict = raw ? test_raw(words, surroundings) : test(words, surroundings);
  status_ = verdict.status;
  presumed_ = verdict.presumed;
}

// Whether a file exists that the script writes, or that lies next to it. Others may exist where the
// script runs.
Status Follower::has_file(const std::string& path, char kind) const {
  std::error_code ignored;
  if (run.files.contains(path)) return kind == 'd' || kind == 'x' ? Status() : true;
  const fs::path known = resolve(path);
  const bool exists = kind == 'd'                  ? fs::is_directory(known, ignored)
                      : kind == 'f' || kind == 's' ? fs::is_regular_file(known, ignored)
                                                   : kind != 'x' && fs::exists(known, ignored);
  return exists && !path.empty() ? Status(true) : std::nullopt;
}

// `set -- 4 8` sets arguments, `set -e` options.
void Follower::set_options(const std::vector<std::string>& words) {
  const auto dashes = std::find(words.begin(), words.end(), "--");
  const bool gives =
      dashes != words.end() || (words.size() > 1 && words[1].find_first_of("-+") != 0);
  if (!gives) return;
  if (mode_ == Mode::maybe) return variables_.forget_arguments(unknown("$@"));
  const auto first = dashes != words.end() ? dashes + 1 : words.begin() + 1;
  set_arguments({first, words.end()});
}

void Follower::unset(const std::vector<std::string>& words) {
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string name = words[i].substr(0, words[i].find('['));
    if (words[1] == "-f") {
      functions_.erase(name);
    } else if (mode_ == Mode::maybe && variables_.contains(name)) {
      variables_.set(name, {under_condition(name)});
    } else if (name != words[i]) {
      forget({name});
    } else {
      variables_.unset(name);
    }
  }
}

void Follower::set_arguments(const std::vector<std::string>& arguments) {
  std::vector<std::string> words{file_};
  words.insert(words.end(), arguments.begin(), arguments.end());
  variables_.replace_arguments(words);
}

// `shift` or `shift 2` of known arguments.
void Follower::shift(const std::vector<std::string>& words) {
  const auto all = variables_.values().find("@");
  if (all == variables_.values().end()) return;
  const bool is_known = words.size() < 2 || !has_unknown(words[1]);
  if (mode_ == Mode::maybe || !is_known) return variables_.forget_arguments(unknown("$@"));
  std::vector<std::string> rest = all->second;
  const std::size_t count = words.size() < 2 ? 1 : std::strtoul(words[1].c_str(), nullptr, 10);
  // A shift by more than there are fails and moves nothing.
  status_ = count <= rest.size();
  if (count > rest.size()) return;
  rest.erase(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(count));
  rest.insert(rest.begin(), words[0]);
  variables_.replace_arguments(rest);
}

}  // namespace trireme::convert::shell
