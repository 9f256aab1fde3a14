// The interpreter behind script.hpp. control_flow.cpp decides which commands run (conditions,
// branches, loops, functions); commands.cpp executes one command.
#pragma once

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "convert/shell/script.hpp"

namespace trireme::convert::shell {

/// Whether a command succeeds; empty if unknown.
using Status = std::optional<bool>;

/// The status of `[ ... ]`, `[[ ... ]]` or `test ...` with these expanded words.
Status test(std::vector<std::string> words);

/// The status of `[ -z "$NAME" ]` and `[ -n "$NAME" ]` for an unknown variable NAME, presumed to be
/// unset as in `${NAME:-default}`. Empty for all other tests.
Status presume(const std::vector<std::string>& words);

/// Whether the pattern of a case matches `subject`.
Status matches_pattern(const std::string& pattern, const std::string& subject);

/// Whether `words`, not yet expanded, use positional arguments: `$1`, `$#`, `$@` or `getopts`.
bool names_arguments(const std::vector<std::string>& words);

/// How commands at one point of the script are treated. In a presumed branch only `exit` is
/// ignored: scripts often end with a usage message if a variable is not set.
enum class Mode { run, presumed, maybe, skip };

/// The enclosing `if`, `case` and loops at one point of the script.
class Branches {
 public:
  /// The mode of the innermost branch.
  Mode mode() const { return frames_.empty() ? Mode::run : frames_.back().mode; }

  void open_if() { frames_.push_back({Kind::condition, mode(), mode(), false}); }
  /// `then`, after a condition with `status`; `presumed` as returned by presume().
  void then(Status status, bool presumed = false);
  /// `else`, or an `elif` whose condition follows.
  void otherwise();
  /// The body of a loop runs unless enter() is called with false.
  void open_loop() { frames_.push_back({Kind::loop, mode(), mode(), false}); }
  /// `do` of a loop whose body runs only if `enters`.
  void enter(bool enters) {
    const bool is_loop = !frames_.empty() && frames_.back().kind == Kind::loop;
    if (is_loop && !enters) frames_.back().mode = Mode::skip;
  }
  /// `case`: its branches may run until choose() decides.
  void open_case(std::string subject) {
    frames_.push_back({Kind::choice, mode(), weaker(mode()), false, std::move(subject)});
  }
  /// The subject of the innermost `case`; null if the innermost block is no `case`.
  const std::string* subject() const {
    const bool is_case = !frames_.empty() && frames_.back().kind == Kind::choice;
    return is_case ? &frames_.back().subject : nullptr;
  }
  /// A pattern of the case, which matches its subject or not.
  void choose(Status matches);
  /// `fi`, `done` or `esac`; a surplus one is ignored.
  void close() {
    if (!frames_.empty()) frames_.pop_back();
  }

 private:
  enum class Kind { condition, loop, choice };
  struct Frame {
    Kind kind;
    Mode outer;   ///< of the enclosing block
    Mode mode;    ///< of the branch being read
    Status done;  ///< whether an earlier branch was taken
    std::string subject = {};
  };

  static Mode weaker(Mode mode) { return mode == Mode::skip ? mode : Mode::maybe; }

  std::vector<Frame> frames_;
};

// Limit on nested functions, sourced files and `eval`: a script that calls itself exceeds it.
inline constexpr int kMaxDepth = 16;

// Limit on the commands of one conversion.
inline constexpr int kMaxCommands = 100'000;

inline bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

/// Interprets one script; `run` collects its effects.
class Follower {
 public:
  /// `environment` are the variables that the calling script exports, `depth` is the call depth.
  Follower(const std::filesystem::path& file, const Definitions& definitions,
           const std::vector<std::string>& arguments, const Values& environment = {}, int depth = 0)
      : file_(file.string()),
        folder_(file.parent_path()),
        definitions_(definitions),
        variables_(definitions, file_, environment),
        open_{file},
        depth_(depth) {
    if (!arguments.empty()) set_arguments(arguments);
  }

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
  std::optional<std::size_t> pattern_after(const Commands& commands, std::size_t at) const;
  Status matches_case(const Commands& commands, std::size_t first, std::size_t last);
  bool runs_after(const Command& command);

  void assign(const std::string& word, int line);
  void set_element(const std::string& target, const std::string& raw);
  void set_keys(const std::string& name, const std::vector<std::string>& elements);
  void read_here(const std::vector<std::string>& words, const Command& command);
  void declare(const std::vector<std::string>& words, std::size_t first, int line);
  void export_names(const std::vector<std::string>& words, std::size_t first);
  void loop_over(const Command& command);
  bool enters_loop() const;
  bool is_builtin(const std::vector<std::string>& words, const Command& command);
  void set_arguments(const std::vector<std::string>& arguments);
  void shift(const std::vector<std::string>& words);
  void call(const Commands& body, const std::vector<std::string>& words);
  std::filesystem::path resolve(const std::string& name) const;
  void source(const std::vector<std::string>& words);
  bool starts_script(const std::vector<std::string>& words);
  void write(const Command& command, const std::string& text);
  void edit(const std::vector<std::string>& words, const Command& command);
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
  std::filesystem::path folder_;
  const Definitions& definitions_;
  Variables variables_;
  std::map<std::string, Commands> functions_;
  Branches branches_;
  Status status_ = true;
  bool assumed_ = false;                   // status_ is a program's, assumed to succeed
  bool presumed_ = false;                  // status_ is a test of a variable presumed unset
  Status loop_ends_on_;                    // the status that ends the loop before its `do`
  bool asks_for_arguments_ = false;        // the last condition used unknown arguments
  bool inverts_ = false;                   // `!` stands before the command
  Mode mode_ = Mode::run;                  // of the current command
  std::vector<std::string> prefix_;        // variables set in front of the current command
  std::vector<std::string> words_before_;  // of the launcher around `bash -c`
  std::optional<std::string> piped_;       // the output of `sed` into a pipe
  bool stopped_ = false;
  std::vector<std::filesystem::path> open_;  // the chain of started scripts, this one last
  int depth_;
  int followed_ = 0;
};

}  // namespace trireme::convert::shell
