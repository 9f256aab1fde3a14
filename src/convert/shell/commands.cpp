// What each command of a script does: assignments, builtins, files, functions, programs.
#include <fmt/format.h>

#include <cstdlib>
#include <system_error>
#include <utility>

#include "convert/shell/follower.hpp"
#include "convert/shell/substitute.hpp"
#include "convert/shell/unknown.hpp"
#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme::convert::shell {

namespace fs = std::filesystem;

void Follower::follow_one(const Command& command) {
  std::size_t first = 0;
  while (first < command.words.size() && assignment_at(command.words[first])) {
    assign(command.words[first], command.line);
    ++first;
  }
  status_ = true;
  assumed_ = false;
  presumed_ = false;
  asks_for_arguments_ |= !variables_.has_arguments() && names_arguments(command.words);
  // A here-document without a command, `NAME=<<END`, is read by nothing.
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
    return;
  }
  std::vector<std::string> words = expand_all(command.words, first);
  if (words.empty() || words[0] != "sed" || command.link != Link::pipe) piped_.reset();
  if (words.empty() || is_builtin(words, command)) return;
  if (const auto function = functions_.find(words[0]); function != functions_.end()) {
    // The body may define the function anew.
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
    // One element of an array: which one may hang on the loop around it.
    name.resize(name.find('['));
    variables_.set(name, {unknown("$" + name)});
  } else if (mode_ == Mode::maybe) {
    // What it had before stays in front where the condition only adds to it.
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
    if (appends)
      variables_.append(name, array);
    else
      variables_.set(name, std::move(array));
  } else if (appends) {
    variables_.append(name, expander().text(raw));
  } else {
    variables_.set(name, {expander().text(raw)});
  }
}

void Follower::declare(const std::vector<std::string>& words, std::size_t first, int line) {
  for (std::size_t i = first; i < words.size(); ++i)
    if (assignment_at(words[i])) assign(words[i], line);
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
    if (words.size() > 1) source(words[1]);
  } else if (name == "eval") {
    std::string text;
    for (std::size_t i = 1; i < words.size(); ++i) text.append(words[i]).append(" ");
    follow_inner(text, command.line, {});
  } else if (name == "sed") {
    edit(words, command);
  } else if (name == "shift") {
    shift(words);
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
    // Of the others only programs that start something are of interest.
    return is_one_of(
        name, {"printf", "cd", "set", "mkdir", "cat", "cp", "rm", "module", "conda", "ulimit",
               "trap", "wait", "sleep", "tee", "date", "break", "continue", "getopts"});
  }
  return true;
}

// `shift` or `shift 2` of arguments that are known.
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

// The path of the file `name` where it lies with the script.
fs::path Follower::beside(const std::string& name) const {
  // A folder that the script asks for as it runs, by `pwd` or a `cd` there, is most often its own.
  const std::size_t mark = name.rfind(kUnknownEnd);
  const fs::path known(mark == std::string::npos ? name
                                                 : fmt::format(".{}", name.substr(mark + 1)));
  return known.is_absolute() ? known : (folder_ / known).lexically_normal();
}

// Keeps what `command` prints into a file.
void Follower::write(const Command& command, const std::string& text) {
  if (command.written_to.empty()) return;
  const std::string name = expander().text(command.written_to);
  std::string& file = run.files[name];
  if (mode_ == Mode::maybe)
    file = unknown(fmt::format("{} (line {} writes it under a condition)", name, command.line));
  else
    file = command.appends ? file + text : text;
}

// `sed s/a/b/ FILE`, or the same on what the `sed` before it in a pipe prints.
void Follower::edit(const std::vector<std::string>& words, const Command& command) {
  std::error_code ignored;
  if (words.size() == 3) {
    const auto written = run.files.find(words[2]);
    const fs::path path = beside(words[2]);
    if (written != run.files.end())
      piped_ = written->second;
    else if (fs::is_regular_file(path, ignored))
      piped_ = read_file(path);
  }
  piped_ = piped_ && words.size() > 1 ? substitute(words[1], *piped_) : std::nullopt;
  if (piped_) write(command, *piped_);
}

void Follower::source(const std::string& name) {
  const fs::path path = beside(name);
  std::error_code ignored;
  // What is not there sets nothing: its variables stay unknown.
  if (!fs::is_regular_file(path, ignored)) return;
  const std::string outer = std::exchange(file_, path.string());
  follow_text(read_file(path));
  file_ = outer;
}

// Follows the text of `eval` or `bash -c`; `before` are the words of the launcher around it.
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
  words.insert(words.begin(), words_before_.begin(), words_before_.end());
  run.commands.push_back({std::move(words), file_, line});
}

// What `$( ... )` prints, where that can be told.
std::optional<std::string> Follower::output_of(const std::string& text) {
  if (++depth_ > kDeepest) throw DataError("{}: '$(' is nested too deeply", file_);
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
