// The execution of one command: assignments, builtins, files, functions, programs.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "convert/shell/follower.hpp"
#include "convert/shell/script.hpp"
#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme::convert::shell {

namespace fs = std::filesystem;

void Follower::follow_one(const Command& command) {
  std::size_t first = 0;
  prefix_.clear();
  while (first < command.words.size() && assignment_at(command.words[first])) {
    const std::string& word = command.words[first];
    assign(word, command.line);
    prefix_.push_back(word.substr(0, word.find_first_of("+=[")));
    ++first;
  }
  status_ = true;
  assumed_ = false;
  presumed_ = false;
  asks_for_arguments_ |= !variables_.has_arguments() && names_arguments(command.words);
  // A here-document without a command, `NAME=<<END`, has no reader.
  if (first == command.words.size()) return;
  if (command.words[first] == "#SBATCH") {
    for (std::string& word : expand_all(command.words, first + 1))
      run.sbatch.push_back(std::move(word));
    return;
  }
  if (command.words[first] == "((") {
    status_ = expander().holds(command.words[first + 1]);
    return;
  }
  if (is_one_of(command.words[first], {"export", "declare", "local", "readonly", "typeset"})) {
    declare(command.words, first + 1, command.line);
    if (command.words[first] == "export") export_names(command.words, first + 1);
    return;
  }
  std::vector<std::string> words = expand_all(command.words, first);
  if (words.empty() || words[0] != "sed" || command.link != Link::pipe) piped_.reset();
  if (words.empty() || is_builtin(words, command)) return;
  if (const auto function = functions_.find(words[0]); function != functions_.end()) {
    // The body may redefine the function.
    const Commands body = function->second;
    call(body, words);
    return;
  }
  record(std::move(words), command.line);
}

void Follower::assign(const std::string& word, int line) {
  const std::size_t equals = *assignment_at(word);
  const bool appends = word[equals - 1] == '+';
  std::string name = word.substr(0, equals - (appends ? 1 : 0));
  const std::string raw = word.substr(equals + 1);
  if (name.find('[') != std::string::npos) {
    set_element(name, raw);
  } else if (mode_ == Mode::maybe) {
    // The old value stays in front if the condition only appends to it.
    const std::string mark =
        unknown(fmt::format("${} (line {} sets it under a condition)", name, line));
    const auto old = variables_.values().find(name);
    const bool known = old != variables_.values().end() && !old->second.empty();
    const bool is_array = raw.starts_with("(");
    if (known && appends && is_array)
      variables_.append(name, std::vector<std::string>{mark});
    else if (known && !is_array && !old->second[0].empty() &&
             (appends || expander().text(raw).starts_with(old->second[0])))
      variables_.set(name, {fmt::format("{} {}", old->second[0], mark)});
    else
      variables_.set(name, {mark});
  } else if (raw.starts_with("(") && raw.ends_with(")")) {
    std::vector<std::string> array;
    for (const Command& line_of_words : read_commands(raw.substr(1, raw.size() - 2), file_, line))
      for (std::string& element : expand_all(line_of_words.words, 0))
        array.push_back(std::move(element));
    if (!array.empty() && array[0].starts_with('['))
      set_keys(name, array);
    else if (appends)
      variables_.append(name, array);
    else
      variables_.set(name, std::move(array));
  } else if (appends) {
    variables_.append(name, expander().text(raw));
  } else {
    variables_.set(name, {expander().text(raw)});
  }
}

// `NAME[INDEX]=text`: an element of an array, or of an associative one. The whole array is then
// unknown unless the index is a number within it.
void Follower::set_element(const std::string& target, const std::string& raw) {
  const std::size_t bracket = target.find('[');
  const std::string name = target.substr(0, bracket);
  if (variables_.is_fixed(name)) return;
  std::string index = target.substr(bracket + 1);
  if (index.ends_with(']')) index.pop_back();
  index = expander().text(index);
  const bool known = mode_ == Mode::run && !has_unknown(index);
  const std::string value =
      known ? expander().text(raw) : unknown(fmt::format("${{{}[{}]}}", name, shown(index)));
  variables_.set(fmt::format("{}[{}]", name, index), {value});
  const auto old = variables_.values().find(name);
  const bool is_number = !index.empty() && index.size() < 4 &&
                         index.find_first_not_of("0123456789") == std::string::npos;
  if (known && is_number && old != variables_.values().end() &&
      std::stoul(index) < old->second.size()) {
    std::vector<std::string> array = old->second;
    array[std::stoul(index)] = value;
    variables_.set(name, std::move(array));
  } else {
    variables_.set(name, {unknown("$" + name)});
  }
}

// `NAME=([KEY]=text [KEY2]=text)`: an associative array.
void Follower::set_keys(const std::string& name, const std::vector<std::string>& elements) {
  std::vector<std::string> values;
  for (const std::string& element : elements) {
    const std::size_t close = element.find("]=");
    if (close == std::string::npos) continue;
    values.push_back(element.substr(close + 2));
    variables_.set(fmt::format("{}[{}]", name, element.substr(1, close - 1)), {values.back()});
  }
  variables_.set(name, std::move(values));
}

// `read NAME << END`, or `read -d '' NAME << END` for all of its lines.
void Follower::read_here(const std::vector<std::string>& words, const Command& command) {
  const std::string& name = words.back();
  const bool is_plain =
      words.size() > 1 && !name.empty() && std::all_of(name.begin(), name.end(), is_name);
  if (!is_plain) return;
  if (!command.here || mode_ == Mode::maybe) return variables_.set(name, {unknown("$" + name)});
  std::string text =
      command.here->expands ? expander().here_text(command.here->text) : command.here->text;
  const bool whole = std::find(words.begin(), words.end(), "-d") != words.end() ||
                     std::any_of(words.begin(), words.end(), [](const std::string& word) {
                       return word.starts_with("-") && word.ends_with("d");
                     });
  if (!whole) text.resize(std::min(text.find('\n'), text.size()));
  while (text.ends_with('\n')) text.pop_back();
  variables_.set(name, {text});
}

void Follower::declare(const std::vector<std::string>& words, std::size_t first, int line) {
  for (std::size_t i = first; i < words.size(); ++i)
    if (assignment_at(words[i])) assign(words[i], line);
}

void Follower::export_names(const std::vector<std::string>& words, std::size_t first) {
  for (std::size_t i = first; i < words.size(); ++i)
    variables_.export_name(words[i].substr(0, words[i].find_first_of("=+[")));
}

bool Follower::is_builtin(const std::vector<std::string>& words, const Command& command) {
  const std::string& name = words[0];
  if (is_one_of(name, {"[", "[[", "test"})) {
    status_ = test(words);
    if (const Status presumed = presume(words)) {
      status_ = presumed;
      presumed_ = true;
    }
  } else if (name == "true" || name == ":") {
    status_ = true;
  } else if (name == "false") {
    status_ = false;
  } else if (name == "exit" || name == "return") {
    if (mode_ == Mode::run && name == "exit") stopped_ = true;
  } else if (name == "source" || name == ".") {
    if (words.size() > 1) source(words);
  } else if (name == "eval") {
    std::string text;
    for (std::size_t i = 1; i < words.size(); ++i) text.append(words[i]).append(" ");
    follow_inner(text, command.line, {});
  } else if (name == "sed") {
    edit(words, command);
  } else if (name == "shift") {
    shift(words);
  } else if (name == "set") {
    // `set -- 4 8` sets arguments, `set -e` options.
    const bool gives = words.size() > 1 && (words[1] == "--" || words[1].find_first_of("-+") != 0);
    const std::ptrdiff_t first = gives && words[1] == "--" ? 2 : 1;
    if (gives && mode_ != Mode::maybe) set_arguments({words.begin() + first, words.end()});
  } else if (name == "read") {
    read_here(words, command);
  } else if (name == "unset") {
    for (std::size_t i = 1; i < words.size(); ++i) variables_.unset(words[i]);
  } else if (name == "cat" && command.here && !command.written_to.empty()) {
    const std::string& text = command.here->text;
    write(command, command.here->expands ? expander().here_text(text) : text);
  } else if (name == "echo") {
    std::string text;
    for (std::size_t i = 1; i < words.size(); ++i)
      if (i > 1 || (words[i] != "-e" && words[i] != "-n")) text.append(words[i]).append(" ");
    write(command, text + "\n");
  } else {
    // Builtins and programs that start no other program.
    return is_one_of(
        name, {"printf", "cd", "mkdir", "cat", "cp", "rm", "module", "conda", "ulimit", "trap",
               "wait", "sleep", "tee", "date", "break", "continue", "getopts"});
  }
  return true;
}

void Follower::set_arguments(const std::vector<std::string>& arguments) {
  std::vector<std::string> words{file_};
  words.insert(words.end(), arguments.begin(), arguments.end());
  variables_.replace_arguments(words);
}

// `shift` or `shift 2` of known arguments.
void Follower::shift(const std::vector<std::string>& words) {
  const auto all = variables_.values().find("@");
  if (mode_ == Mode::maybe || all == variables_.values().end()) return;
  std::vector<std::string> rest = all->second;
  const std::size_t count = words.size() < 2 ? 1 : std::strtoul(words[1].c_str(), nullptr, 10);
  rest.erase(rest.begin(),
             rest.begin() + static_cast<std::ptrdiff_t>(std::min(count, rest.size())));
  rest.insert(rest.begin(), words[0]);
  variables_.replace_arguments(rest);
}

void Follower::call(const Commands& body, const std::vector<std::string>& words) {
  Values outer = variables_.replace_arguments(words);
  const Branches branches = std::exchange(branches_, Branches());
  follow_commands(body);
  branches_ = branches;
  variables_.restore_arguments(std::move(outer));
}

// The path of the file `name`, relative to the script's folder.
fs::path Follower::resolve(const std::string& name) const {
  // A folder that the script computes, by `pwd` or `cd`, is usually its own.
  const std::size_t mark = name.rfind(kUnknownEnd);
  const fs::path known(mark == std::string::npos ? name
                                                 : fmt::format(".{}", name.substr(mark + 1)));
  return known.is_absolute() ? known : (folder_ / known).lexically_normal();
}

// Stores what `command` writes to a file.
void Follower::write(const Command& command, const std::string& text) {
  if (command.written_to.empty()) return;
  const std::string name = expander().text(command.written_to);
  std::string& file = run.files[name];
  if (mode_ == Mode::maybe)
    file = unknown(fmt::format("{} (line {} writes it under a condition)", name, command.line));
  else
    file = command.appends ? file + text : text;
}

// `sed s/a/b/ FILE`, or the same on the output of the previous `sed` in a pipe.
void Follower::edit(const std::vector<std::string>& words, const Command& command) {
  std::error_code ignored;
  if (words.size() == 3) {
    const auto written = run.files.find(words[2]);
    const fs::path path = resolve(words[2]);
    if (written != run.files.end())
      piped_ = written->second;
    else if (fs::is_regular_file(path, ignored))
      piped_ = read_file(path);
  }
  piped_ = piped_ && words.size() > 1 ? substitute(words[1], *piped_) : std::nullopt;
  if (piped_) write(command, *piped_);
}

// `source FILE` or `source FILE ARGUMENTS`.
void Follower::source(const std::vector<std::string>& words) {
  const fs::path path = resolve(words[1]);
  std::error_code ignored;
  // The variables of a missing file stay unknown.
  if (!fs::is_regular_file(path, ignored)) return;
  const std::string outer = std::exchange(file_, path.string());
  const bool has_arguments = words.size() > 2;
  Values before;
  if (has_arguments) before = variables_.replace_arguments({words.begin() + 1, words.end()});
  follow_text(read_file(path));
  if (has_arguments) variables_.restore_arguments(std::move(before));
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
  Follower inner(path, definitions_, arguments, variables_.exported(prefix_), depth_);
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

// Interprets the text of `eval` or `bash -c`; `before` are the words of the launcher.
void Follower::follow_inner(const std::string& text, int line,
                            const std::vector<std::string>& before) {
  const std::size_t outer = words_before_.size();
  words_before_.insert(words_before_.end(), before.begin(), before.end());
  follow_commands(read_commands(text, file_, line));
  words_before_.resize(outer);
}

void Follower::record(std::vector<std::string> words, int line) {
  assumed_ = true;
  for (std::size_t i = 0; i + 2 < words.size(); ++i) {
    const std::string name = fs::path(words[i]).filename().string();
    const bool commands =
        words[i + 1].starts_with("-") && words[i + 1].ends_with("c") && words[i + 1].size() <= 4;
    if (!is_one_of(name, {"bash", "sh"}) || !commands) continue;
    const std::string text = words[i + 2];
    words.resize(i);
    follow_inner(text, line, words);
    return;
  }
  // The command of `ssh HOST "cd FOLDER && python ..."`, which is one word.
  if (words[0] == "ssh" && words.size() > 2 && words.back().find(' ') != std::string::npos)
    return follow_inner(words.back(), line, {});
  if (starts_script(words)) return;
  words.insert(words.begin(), words_before_.begin(), words_before_.end());
  run.commands.push_back({std::move(words), file_, line});
}

// The output of `$( ... )`; empty if unknown.
std::optional<std::string> Follower::output_of(const std::string& text) {
  if (++depth_ > kMaxDepth) throw DataError("{}: '$(' is nested too deeply", file_);
  const Commands commands = read_commands(text, file_);
  std::optional<std::string> output;
  if (commands.size() == 1 && !commands[0].words.empty()) {
    const Command& command = commands[0];
    const std::vector<std::string> words = expand_all(command.words, 0);
    const std::string name = words.empty() ? "" : words[0];
    const bool single = words.size() == 2 || (words.size() == 3 && words[1] == "-f");
    if (name == "cat" && command.here) {
      output =
          command.here->expands ? expander().here_text(command.here->text) : command.here->text;
      while (output->ends_with('\n')) output->pop_back();
    } else if (name == "echo") {
      output = "";
      for (std::size_t i = 1; i < words.size(); ++i)
        output->append(i > 1 ? " " : "").append(words[i]);
    } else if (name == "pwd" && words.size() == 1) {
      output = expander().text("$PWD");
    } else if (single && (name == "realpath" || name == "readlink")) {
      output = words.back();
    } else if (single && name == "dirname") {
      const std::string parent = fs::path(words.back()).parent_path().string();
      output = parent.empty() ? "." : parent;
    } else if (single && name == "basename") {
      output = fs::path(words.back()).filename().string();
    }
  }
  --depth_;
  return output;
}

}  // namespace trireme::convert::shell
