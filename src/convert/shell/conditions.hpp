// The conditions of a script: tests whose answer may be unknown, and the branches that hang on
// them.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::convert::shell {

/// Whether a command succeeds; empty where nobody can tell.
using Status = std::optional<bool>;

/// The answer of `[ ... ]`, `[[ ... ]]` or `test ...`, whose expanded words these are.
Status test(std::vector<std::string> words);

/// The answer of `[ -z "$NAME" ]` and `[ -n "$NAME" ]`, where NAME is a variable of which nothing
/// is known: that it is not set, as `${NAME:-default}` takes it. Empty for all other tests.
Status presume(const std::vector<std::string>& words);

/// Whether the pattern of a case fits `subject`.
Status fits(const std::string& pattern, const std::string& subject);

/// Whether `words`, not yet expanded, name arguments of the script, `$1`, `$#` or `$@`, or read
/// them by `getopts`.
bool names_arguments(const std::vector<std::string>& words);

/// How commands at one place of the script are to be taken. Of those in a presumed branch only
/// `exit` is not believed: it may be what a script says to those who set nothing.
enum class Mode { run, presumed, maybe, skip };

/// The open `if`, `case` and loops around a place of the script.
class Branches {
 public:
  /// Of the innermost place.
  Mode mode() const { return frames_.empty() ? Mode::run : frames_.back().mode; }

  void open_if() { frames_.push_back({Kind::condition, mode(), mode(), false}); }
  /// `then`, after a condition that ended with `status`, maybe a presumed one.
  void then(Status status, bool presumed = false);
  /// `else`, or the `elif` whose condition comes next.
  void otherwise();
  /// A loop's body runs, as far as one can tell, unless enter() says no; a case's branches may.
  void open_loop() { frames_.push_back({Kind::loop, mode(), mode(), false}); }
  /// `do` of a loop whose body runs only if `enters`.
  void enter(bool enters) {
    const bool is_loop = !frames_.empty() && frames_.back().kind == Kind::loop;
    if (is_loop && !enters) frames_.back().mode = Mode::skip;
  }
  /// `case`: its branches may run, unless choose() knows more.
  void open_case(std::string subject) {
    frames_.push_back({Kind::choice, mode(), weaker(mode()), false, std::move(subject)});
  }
  /// What the innermost place's `case` looks at; null where it is in another thing.
  const std::string* subject() const {
    const bool is_case = !frames_.empty() && frames_.back().kind == Kind::choice;
    return is_case ? &frames_.back().subject : nullptr;
  }
  /// A pattern of the case, which fits its subject or not.
  void choose(Status fits);
  /// `fi`, `done` or `esac`; one too many changes nothing.
  void close() {
    if (!frames_.empty()) frames_.pop_back();
  }

 private:
  enum class Kind { condition, loop, choice };
  struct Frame {
    Kind kind;
    Mode outer;   ///< of the place around it
    Mode mode;    ///< of the branch being read
    Status done;  ///< whether an earlier branch was the one
    std::string subject = {};
  };

  static Mode weaker(Mode mode) { return mode == Mode::skip ? mode : Mode::maybe; }

  std::vector<Frame> frames_;
};

}  // namespace trireme::convert::shell
