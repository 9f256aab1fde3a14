// The conditions of a script: `[ ... ]`, `test ...`, `[[ ... ]]` and the patterns of a case.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "convert/shell/script.hpp"

namespace trireme::convert::shell {

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

}  // namespace trireme::convert::shell
