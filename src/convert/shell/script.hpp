// What a shell script would run, found by following it without running anything.
//
// Followed are assignments, arrays, quotes, arithmetic, defaults, functions, `source`, arguments,
// other scripts that are there (`bash X.sh 8`, `sbatch X.sh`), here-documents, `sed` on a template
// and conditions on what is known; loops are followed once.
// What the environment or another program would tell is marked (unknown.hpp), and so is what only
// an undecided condition sets.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "convert/shell/expand.hpp"

namespace trireme::convert::shell {

/// A command with its words expanded.
struct RunCommand {
  std::vector<std::string> words;
  std::string file;
  int line = 0;  ///< in `file`
};

/// What a script would do.
struct Run {
  std::vector<RunCommand> commands;          ///< all but the shell's own
  std::map<std::string, std::string> files;  ///< those that `cat << END`, echo and sed would write
  std::vector<std::string> sbatch;           ///< the words of its #SBATCH lines
};

/// Follows the script `text`, which errors call `file`; sourced and started scripts are looked for
/// in its folder. `arguments` are its `$1`, `$2`, ...; without them nothing is known of those. Of
/// `bash -c "..."` and `eval` the commands within are followed. Throws DataError where the text is
/// no shell script, or goes deeper than any script does.
Run follow(std::string_view text, const std::filesystem::path& file,
           const Definitions& definitions = {}, const std::vector<std::string>& arguments = {});

}  // namespace trireme::convert::shell
