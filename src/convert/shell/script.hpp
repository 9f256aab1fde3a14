// An interpreter of shell scripts that starts no program: it finds the commands a script would run.
//
// It evaluates assignments, arrays, quotes, arithmetic, defaults, functions, `source`, positional
// arguments, other scripts that exist (`bash X.sh 8`, `sbatch X.sh`), here-documents, `sed` on a
// template and conditions on known values; loop bodies are evaluated once.
// Values that the environment or another program would provide, and variables that only an
// undecided condition sets, are marked as unknown (lexer.hpp).
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

/// The effects of a script.
struct Run {
  std::vector<RunCommand> commands;          ///< without shell builtins
  std::map<std::string, std::string> files;  ///< written by `cat << END`, echo and sed
  std::vector<std::string> sbatch;           ///< the words of its #SBATCH lines
};

/// Interprets the script `text`, which errors call `file`; sourced and started scripts are searched
/// in its folder. `arguments` are its `$1`, `$2`, ...; if they are empty, the positional arguments
/// are unknown. `bash -c "..."` and `eval` are interpreted too. Throws DataError if the text is no
/// shell script, or exceeds the limits on depth and length.
Run follow(std::string_view text, const std::filesystem::path& file,
           const Definitions& definitions = {}, const std::vector<std::string>& arguments = {});

}  // namespace trireme::convert::shell
