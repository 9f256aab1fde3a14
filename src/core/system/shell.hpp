// Words for a shell, and what it answers.
#pragma once

#include <string>

namespace trireme {

/// `word` as one word of a shell's command line: quoted where it needs to be.
std::string shell_word(const std::string& word);

/// What a command printed on standard output, and how it ended.
struct ShellAnswer {
  std::string output;
  int code = 0;  ///< the exit code; 128 when a signal ended the shell
};

/// Runs `line` in a shell and waits for its end. Throws IoError when there is no shell to be had.
ShellAnswer ask_shell(const std::string& line);

}  // namespace trireme
