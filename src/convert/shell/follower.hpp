// The interpreter behind script.hpp. commands.cpp decides which commands run and executes one,
// blocks.cpp runs groups, subshells, functions and loops, assignments.cpp sets variables,
// output.cpp prints and starts scripts and programs; expansion/conditions.cpp has tests.
#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "convert/shell/script.hpp"

namespace trireme::convert::shell {

// The conditions of a script: `[ ... ]`, `test ...`, `[[ ... ]]` and the patterns of a case.

/// Whether a command succeeds; empty if unknown.
using Status = std::optional<bool>;

/// What a condition needs of the script that it stands in.
struct Surroundings {
  std::function<Expander()> expander;
  /// Whether the file exists; empty if that is unknown, as the script may run on another machine.
  std::function<Status(const std::string& path, char kind)> has_file;
  /// Sets BASH_REMATCH.
  std::function<void(std::vector<std::string>)> matched;
};

/// The result of a condition.
struct Verdict {
  Status status;
  /// It depends on a test `-z "$NAME"` or `-n "$NAME"` of an unknown variable NAME, presumed to be
  /// unset as in `${NAME:-default}`.
  bool presumed = false;
};

/// The verdict of `[ ... ]` or `test ...` with these expanded words, without the command and `]`.
Verdict test(const std::vector<std::string>& words, const Surroundings& surroundings);

/// The verdict of `[[ ... ]]` with these words, not yet expanded, without the brackets.
Verdict test_raw(const std::vector<std::string>& words, const Surroundings& surroundings);

/// Whether the pattern of a case matches `subject`.
Status matches_pattern(const std::string& pattern, const std::string& subject);

/// Whether `words`, not yet expanded, use positional arguments: `$1`, `$#`, `$@` or `getopts`.
bool names_arguments(const std::vector<std::string>& words);

// The interpreter.

/// How commands at one point of the script are treated. In a presumed branch only `exit` is
/// ignored: scripts often end with a usage message if a variable is not set.
enum class Mode { run, presumed, maybe, skip };

/// The enclosing `if`, `case` and loops at one point of the script.
class Branches {
 public:
  /// The mode of the innermost branch.
  Mode mode() const {
    const Mode mode = frames_.empty() ? Mode::run : frames_.back().mode;
    return weak_ ? weaker(mode) : mode;
  }

  void open_if() { frames_.push_back({Kind::condition, mode(), mode(), false}); }
  /// `then`, after a condition with `status`; `presumed` as returned by presume().
  void then(Status status, bool presumed = false);
  /// `else`, or an `elif` whose condition follows.
  void otherwise();
  /// A group, a loop or a function's body, whose commands are treated as `mode` says.
  void open_block(Mode mode) { frames_.push_back({Kind::block, mode, mode, false}); }
  /// From here on commands may run: the script may have left the block.
  void weaken() { weak_ = true; }
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
  /// `fi` or `esac`; a surplus one is ignored. Returns whether one of its branches was taken.
  Status close();
  /// The number of open blocks, for cut().
  std::size_t depth() const { return frames_.size(); }
  /// Closes blocks until `depth` are open.
  void cut(std::size_t depth) { frames_.resize(std::min(depth, frames_.size())); }

 private:
  enum class Kind { condition, block, choice };
  struct Frame {
    Kind kind = Kind::block;
    Mode outer = Mode::run;  ///< of the enclosing block
    Mode mode = Mode::run;   ///< of the branch being read
    Status done = false;     ///< whether an earlier branch was taken
    std::string subject = {};
  };

  static Mode weaker(Mode mode) { return mode == Mode::skip ? mode : Mode::maybe; }

  std::vector<Frame> frames_;
  bool weak_ = false;
};

// Limit on nested functions, sourced files and `eval`: a script that calls itself exceeds it.
inline constexpr int kMaxDepth = 16;

// Limit on nested blocks: groups, subshells and loops.
inline constexpr int kMaxBlocks = 64;

// Limit on the passes of one loop.
inline constexpr int kMaxPasses = 1000;

// Limit on the commands of one conversion.
inline constexpr int kMaxCommands = 100'000;

/// The index in `commands` of the keyword that closes the block which `head`, the rest of
/// commands[at], begins; the number of commands if it is not closed.
std::size_t end_of_block(const Command& head, std::span<const Command> commands, std::size_t at);

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
  using CommandSpan = std::span<const Command>;

  /// What ends a list of commands early.
  enum class Leaves { nothing, pass, loop, function, script };

  /// What a subshell does not change.
  struct State {
    Variables variables;
    std::map<std::string, Commands> functions;
    std::set<std::string> associative, integers;
  };

  /// A loop, taken apart.
  struct Loop {
    std::string name;                 ///< of `for`, "" for others
    std::vector<std::string> values;  ///< that `name` gets
    std::vector<std::string> steps;   ///< the three expressions of `for ((a; b; c))`
    Commands condition, body;
    bool until = false;
    int line = 0;
  };

  // commands.cpp
  void follow_commands(CommandSpan commands);
  void follow_list(CommandSpan commands);
  bool is_keyword(Command& command);
  std::optional<std::size_t> pattern_after(CommandSpan commands, std::size_t at) const;
  Status matches_case(CommandSpan commands, std::size_t first, std::size_t last);
  bool runs_after(const Command& command);
  void follow_one(const Command& command);
  void follow_simple(const Command& command, std::size_t first, std::vector<std::string> words);
  bool is_builtin(const std::vector<std::string>& words, const Command& command);
  bool is_quiet_builtin(const std::vector<std::string>& words);
  void check(const std::vector<std::string>& words, bool raw);
  Status has_file(const std::string& path, char kind) const;
  void set_arguments(const std::vector<std::string>& arguments);
  void set_options(const std::vector<std::string>& words);
  void shift(const std::vector<std::string>& words);
  void unset(const std::vector<std::string>& words);

  // blocks.cpp
  std::size_t define_function(Command head, CommandSpan commands, std::size_t at);
  std::size_t follow_block(Command head, CommandSpan commands, std::size_t at);
  void follow_group(CommandSpan body, bool is_subshell);
  void call(const Commands& body, const std::vector<std::string>& words);
  State state() const { return {variables_, functions_, associative_, integers_}; }
  void restore(State state);
  void leave(const std::vector<std::string>& words);
  Loop loop_of(Command head, CommandSpan rest);
  void follow_loop(const Loop& loop);
  bool follow_passes(const Loop& loop, std::vector<std::size_t>& starts);
  Status enters(const Loop& loop, std::size_t pass);
  void follow_body(const Loop& loop);
  bool leaves_loop();
  void follow_undecided(const Loop& loop, std::set<std::string> changed);
  void forget_changed(const std::set<std::string>& names, int line);
  void merge_passes(const Loop& loop, const State& before, const std::vector<std::size_t>& starts);

  // assignments.cpp
  std::string under_condition(const std::string& name) const;
  void assign(const std::string& word);
  void assign_text(const std::string& name, const std::string& text, bool appends);
  void assign_array(const std::string& name, const std::string& raw, bool appends);
  std::string element_of(const std::string& target);
  void set_element(const std::string& target, const std::string& value);
  void set_keys(const std::string& name, const std::vector<std::string>& elements);
  void assign_result(const std::string& name, const std::optional<std::string>& value);
  void forget(const std::vector<std::string>& names);
  void declare(const std::vector<std::string>& raw, std::size_t first);
  void declare_name(const std::string& builtin, const std::string& options, const std::string& word,
                    bool is_raw);
  void let(const std::vector<std::string>& words);
  void read_here(const std::vector<std::string>& words, const Command& command);

  // output.cpp
  std::string here_text(const HereDocument& here);
  void write(const Command& command, const std::string& text);
  void print(const std::vector<std::string>& words, const Command& command);
  void edit(const std::vector<std::string>& words, const Command& command);
  std::optional<std::string> output_of(const std::string& text);
  std::optional<std::string> output_of_command(const Command& command);
  std::filesystem::path resolve(const std::string& name) const;
  void source(const std::vector<std::string>& words);
  bool starts_script(const std::vector<std::string>& words);
  void follow_inner(const std::string& text, const std::vector<std::string>& before);
  void follow_shell(const std::string& text, const std::vector<std::string>& before,
                    const std::vector<std::string>& arguments, const Values& environment);
  void record(std::vector<std::string> words);

  Expander expander() {
    return Expander(
        variables_.values(), [this](const std::string& text) { return output_of(text); },
        [this](const std::string& name, std::optional<std::string> value) {
          assign_result(name, value);
        });
  }
  std::vector<std::string> expand_all(const std::vector<std::string>& raw, std::size_t first) {
    std::vector<std::string> words;
    for (std::size_t i = first; i < raw.size(); ++i)
      for (const std::string& part : expand_lists(raw[i]))
        for (std::string& word : expander().words(part)) words.push_back(std::move(word));
    return words;
  }

  std::string file_;
  std::filesystem::path folder_;
  const Definitions& definitions_;
  Variables variables_;
  std::map<std::string, Commands> functions_;
  std::set<std::string> associative_;                  // arrays that `declare -A` declares
  std::set<std::string> integers_;                     // variables that `declare -i` declares
  std::vector<std::map<std::string, Values>> locals_;  // per function, its caller's variables
  Branches branches_;
  Status status_ = true;
  bool assumed_ = false;                   // status_ is a program's, assumed to succeed
  bool presumed_ = false;                  // status_ is a test of a variable presumed unset
  bool asks_for_arguments_ = false;        // the last condition used unknown arguments
  bool executes_ = false;                  // `exec` stands before the command
  bool inverts_ = false;                   // `!` stands before the command
  Mode mode_ = Mode::run;                  // of the current command
  Mode pipe_mode_ = Mode::run;             // of the pipe of the current command
  int line_ = 0;                           // of the current command
  std::vector<std::string> prefix_;        // variables set in front of the current command
  std::vector<std::string> words_before_;  // of the launcher around `bash -c`
  std::optional<std::string> piped_;       // the output of `sed` into a pipe
  Leaves leaves_ = Leaves::nothing;
  int leaves_loops_ = 0;    // that `break 2` still leaves
  bool undecided_ = false;  // an undecided condition may have left this pass of the loop
  int loops_ = 0;           // around the current command
  int returns_ = 0;         // functions and sourced files around it
  int blocks_ = 0;          // around it
  std::vector<std::filesystem::path> open_;  // the chain of started scripts, this one last
  int depth_;
  int followed_ = 0;
};

}  // namespace trireme::convert::shell
