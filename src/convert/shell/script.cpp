#include "convert/shell/script.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

#include "convert/shell/conditions.hpp"
#include "convert/shell/expand.hpp"
#include "convert/shell/lexer.hpp"
#include "convert/shell/unknown.hpp"
#include "convert/shell/variables.hpp"
#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme::convert::shell {
namespace {

namespace fs = std::filesystem;

// Functions, sourced files and `eval` within each other: deeper is a script that calls itself.
constexpr int kDeepest = 16;

// Commands that are followed in all: a function that calls others many times grows fast.
constexpr int kMostCommands = 100'000;

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

class Follower {
 public:
  Follower(const fs::path& file, const Definitions& definitions)
      : file_(file.string()), folder_(file.parent_path()), variables_(definitions, file_) {}

  void follow_text(std::string_view text, int first_line = 1) {
    follow_commands(read_commands(text, file_, first_line));
  }

  Run run;

 private:
  using Commands = std::vector<Command>;

  void follow_commands(const Commands& commands);
  std::size_t define_function(const Commands& commands, std::size_t at);
  bool is_keyword(Command& command);
  void follow_one(const Command& command);
  bool runs_after(const Command& command);

  void assign(const std::string& word, int line);
  void declare(const std::vector<std::string>& words, std::size_t first, int line);
  void loop_over(const Command& command);
  bool enters_loop() const;
  bool is_builtin(const std::vector<std::string>& words, const Command& command);
  void call(const Commands& body, const std::vector<std::string>& words);
  void source(const std::string& name);
  void follow_inner(const std::string& text, int line, const std::vector<std::string>& before);
  void record(std::vector<std::string> words, int line);
  std::optional<std::string> output_of(const std::string& text);

  Expander expander() {
    return Expander(variables_.values(),
                    [this](const std::string& text) { return output_of(text); });
  }
  std::vector<std::string> expand_all(const std::vector<std::string>& raw, std::size_t first) {
    std::vector<std::string> words;
    for (std::size_t i = first; i < raw.size(); ++i)
      for (std::string& word : expander().words(raw[i])) words.push_back(std::move(word));
    return words;
  }

  std::string file_;
  fs::path folder_;
  Variables variables_;
  std::map<std::string, Commands> functions_;
  Branches branches_;
  Status status_ = true;
  bool assumed_ = false;                   // status_ is of a program, which is taken to succeed
  Status loop_ends_on_;                    // the status that ends the loop whose `do` is awaited
  bool asks_for_arguments_ = false;        // the last condition did, and they are not known
  bool inverts_ = false;                   // `!` stands before the command
  Mode mode_ = Mode::run;                  // of the command being followed
  std::vector<std::string> words_before_;  // of the launcher around `bash -c`
  bool stopped_ = false;
  int depth_ = 0;
  int followed_ = 0;
};

// ---------------------------------------------------------------------------- control

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
    if (is_keyword(command) || (command.words.empty() && !command.here)) continue;
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
      branches_.then(assumed_ ? Status() : status_);
    } else if (word == "elif" || word == "else") {
      branches_.otherwise();
    } else if (word == "fi" || word == "done" || word == "esac") {
      branches_.close();
      return true;
    } else if (word == "case") {
      branches_.open_case();
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

// Whether `command` runs, given the branch it is in and how the one before ended; sets mode_.
bool Follower::runs_after(const Command& command) {
  mode_ = branches_.mode();
  const bool chained = command.link == Link::if_succeeded || command.link == Link::if_failed;
  if (chained && status_ && *status_ != (command.link == Link::if_succeeded)) return false;
  if (chained && !status_ && mode_ == Mode::run) mode_ = Mode::maybe;
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

// ---------------------------------------------------------------------------- one command

void Follower::follow_one(const Command& command) {
  std::size_t first = 0;
  while (first < command.words.size() && assignment_at(command.words[first])) {
    assign(command.words[first], command.line);
    ++first;
  }
  status_ = true;
  assumed_ = false;
  asks_for_arguments_ |= !variables_.has_arguments() && names_arguments(command.words);
  if (first == command.words.size() && !command.here) return;
  if (command.words[first] == "#SBATCH") {
    for (std::string& word : expand_all(command.words, first + 1))
      run.sbatch.push_back(std::move(word));
    return;
  }
  if (is_one_of(command.words[first], {"export", "declare", "local", "readonly", "typeset"})) {
    declare(command.words, first + 1, command.line);
    return;
  }
  std::vector<std::string> words = expand_all(command.words, first);
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
    variables_.set(name,
                   {unknown(fmt::format("${} (line {} sets it under a condition)", name, line))});
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
    for (std::size_t i = 1; i < words.size(); ++i) text += words[i] + " ";
    follow_inner(text, command.line, {});
  } else if (name == "unset") {
    for (std::size_t i = 1; i < words.size(); ++i) variables_.unset(words[i]);
  } else if (name == "cat" && command.here && !command.written_to.empty()) {
    const std::string& text = command.here->text;
    run.files[expander().text(command.written_to)] =
        command.here->expands ? expander().here_text(text) : text;
  } else {
    // Of the others only programs that start something are of interest.
    return is_one_of(name, {"echo",  "printf", "cd",    "set",    "mkdir",    "cat",    "cp",
                            "rm",    "module", "conda", "ulimit", "shift",    "trap",   "wait",
                            "sleep", "tee",    "date",  "break",  "continue", "getopts"});
  }
  return true;
}

// ---------------------------------------------------------------------------- commands within

void Follower::call(const Commands& body, const std::vector<std::string>& words) {
  Values outer = variables_.replace_arguments(words);
  const Branches branches = std::exchange(branches_, Branches());
  follow_commands(body);
  branches_ = branches;
  variables_.restore_arguments(std::move(outer));
}

void Follower::source(const std::string& name) {
  // A folder that the script asks for as it runs, by `pwd` or a `cd` there, is most often its own.
  const std::size_t mark = name.rfind(kUnknownEnd);
  const fs::path known(mark == std::string::npos ? name : "." + name.substr(mark + 1));
  const fs::path path = known.is_absolute() ? known : (folder_ / known).lexically_normal();
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
      for (std::size_t i = 1; i < words.size(); ++i) *output += (i > 1 ? " " : "") + words[i];
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

}  // namespace

Run follow(std::string_view text, const std::filesystem::path& file,
           const Definitions& definitions) {
  Follower follower(file, definitions);
  follower.follow_text(text);
  return std::move(follower.run);
}

}  // namespace trireme::convert::shell
