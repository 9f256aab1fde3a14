// The execution of one command: assignments, tests, builtins, functions, and the scripts, shells
// and programs that it starts.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "convert/shell/follower.hpp"
#include "core/files.hpp"

namespace trireme::convert::shell {

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

// ---- scripts, shells and programs

// The path of the file `name`, relative to the script's folder.
fs::path Follower::resolve(const std::string& name) const {
  // A folder that the script computes, by `pwd` or `cd`, is usually its own.
  const std::size_t mark = name.rfind(kUnknownEnd);
  const fs::path known(mark == std::string::npos ? name
                                                 : fmt::format(".{}", name.substr(mark + 1)));
  return known.is_absolute() ? known : (folder_ / known).lexically_normal();
}

// `source FILE` or `source FILE ARGUMENTS`.
void Follower::source(const std::vector<std::string>& words) {
  const fs::path path = resolve(words[1]);
  std::error_code ignored;
  // The variables of a missing file stay unknown.
  if (!fs::is_regular_file(path, ignored)) return;
  const std::string outer = std::exchange(file_, path.string());
  const int line = line_;
  const Branches branches = branches_;
  branches_.open_block(mode_);
  ++returns_;
  const bool has_arguments = words.size() > 2;
  Values before;
  if (has_arguments) before = variables_.replace_arguments({words.begin() + 1, words.end()});
  follow_text(read_file(path));
  if (has_arguments) variables_.restore_arguments(std::move(before));
  --returns_;
  if (leaves_ == Leaves::function) leaves_ = Leaves::nothing;
  branches_ = branches;
  line_ = line;
  file_ = outer;
}

// Interprets the script that `words` start directly, by a shell, a launcher or sbatch; false if
// they start none that exists.
bool Follower::starts_script(const std::vector<std::string>& words) {
  const auto name_of = [](const std::string& word) { return fs::path(word).filename().string(); };
  const std::string first = name_of(words[0]);
  const bool submits = first == "sbatch";
  const bool by_shell = is_one_of(first, {"bash", "sh", "zsh"});
  const bool may_start =
      submits || by_shell || is_one_of(first, {"srun", "mpirun", "mpiexec", "env", "nice", "time"});
  const auto script = std::find_if(words.begin(), words.end(), [&](const std::string& word) {
    return word.ends_with(".sh") || word.ends_with(".sbatch") || word.ends_with(".slurm");
  });
  if (script == words.end() || (script != words.begin() && !may_start)) return false;
  const bool runs_python =
      std::any_of(words.begin(), script, [](const auto& word) { return word.ends_with(".py"); });
  const fs::path path = resolve(*script);
  std::error_code ignored;
  if (runs_python || has_unknown(*script) || !fs::is_regular_file(path, ignored)) return false;
  // A script that resubmits itself adds nothing.
  for (const fs::path& open : open_)
    if (fs::equivalent(open, path, ignored)) return false;

  const std::vector<std::string> arguments(script + 1, words.end());
  Values environment = variables_.exported(prefix_);
  // `env NAME=text bash X.sh`
  if (first == "env")
    for (auto word = words.begin() + 1; word != script && assignment_at(*word); ++word)
      environment[word->substr(0, *assignment_at(*word))] = {
          word->substr(*assignment_at(*word) + 1)};
  Follower inner(path, definitions_, arguments, environment, depth_);
  // A script started without arguments has none (rather than unknown ones).
  if (arguments.empty()) inner.set_arguments({});
  inner.followed_ = followed_;
  inner.open_.insert(inner.open_.begin(), open_.begin(), open_.end());
  // The launcher of a shell launches the commands of the shell.
  inner.words_before_ = words_before_;
  auto launcher = script;
  if (launcher != words.begin() && is_one_of(name_of(*(launcher - 1)), {"bash", "sh", "zsh"}))
    --launcher;
  if (!submits && !by_shell)
    inner.words_before_.insert(inner.words_before_.end(), words.begin(), launcher);
  inner.follow_text(read_file(path));
  followed_ = inner.followed_;
  if (submits) {
    // Options on the command line override those in the script.
    run.sbatch.insert(run.sbatch.end(), words.begin() + 1, script);
    run.sbatch.insert(run.sbatch.end(), inner.run.sbatch.begin(), inner.run.sbatch.end());
  }
  for (RunCommand& command : inner.run.commands) run.commands.push_back(std::move(command));
  for (auto& [name, text] : inner.run.files) run.files[name] = std::move(text);
  return true;
}

// Interprets the text of `eval`; `before` are the words of the launcher of a shell.
void Follower::follow_inner(const std::string& text, const std::vector<std::string>& before) {
  const std::size_t outer = words_before_.size();
  words_before_.insert(words_before_.end(), before.begin(), before.end());
  const Branches branches = branches_;
  branches_.open_block(mode_);
  follow_commands(read_commands(text, file_, line_));
  branches_ = branches;
  words_before_.resize(outer);
}

// Interprets the text of `bash -c TEXT NAME ARGUMENTS` or of `ssh HOST TEXT`: another shell, which
// has the variables `environment`.
void Follower::follow_shell(const std::string& text, const std::vector<std::string>& before,
                            const std::vector<std::string>& arguments, const Values& environment) {
  State outer = state();
  variables_ = Variables(definitions_, file_, environment);
  functions_.clear();
  if (!arguments.empty()) {
    variables_.set("0", {arguments[0]});
    variables_.replace_arguments(arguments);
  }
  const int returns = std::exchange(returns_, 0), loops = std::exchange(loops_, 0);
  follow_inner(text, before);
  returns_ = returns;
  loops_ = loops;
  leaves_ = Leaves::nothing;
  restore(std::move(outer));
}

void Follower::record(std::vector<std::string> words) {
  for (std::size_t i = 0; i + 2 < words.size(); ++i) {
    const std::string name = fs::path(words[i]).filename().string();
    const bool commands =
        words[i + 1].starts_with("-") && words[i + 1].ends_with("c") && words[i + 1].size() <= 4;
    if (!is_one_of(name, {"bash", "sh"}) || !commands) continue;
    const std::string text = words[i + 2];
    const std::vector<std::string> arguments(words.begin() + static_cast<std::ptrdiff_t>(i) + 3,
                                             words.end());
    words.resize(i);
    follow_shell(text, words, arguments, variables_.exported(prefix_));
    assumed_ = true;
    return;
  }
  assumed_ = true;
  // The command of `ssh HOST "cd FOLDER && python ..."`, which is one word.
  if (words[0] == "ssh" && words.size() > 2 && words.back().find(' ') != std::string::npos)
    return follow_shell(words.back(), {}, {}, {});
  if (starts_script(words)) return;
  // What a program that searches finds is unknown, also in `grep -q ... && X=1`.
  if (is_one_of(words[0], {"grep", "egrep", "which", "type", "pgrep", "diff", "cmp"}) ||
      (words[0] == "command" && words.size() > 1 && words[1].starts_with("-")))
    status_ = std::nullopt;
  words.insert(words.begin(), words_before_.begin(), words_before_.end());
  run.commands.push_back({std::move(words), file_, line_});
}

}  // namespace trireme::convert::shell
