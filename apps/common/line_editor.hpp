// Lines that a person types, edited and with a history where libedit is there.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>

#ifdef TRIREME_WITH_EDIT
#include <editline/readline.h>
#endif

namespace trireme {

/// The next line after `prompt`; nothing at the end of the input.
inline std::optional<std::string> edited_line(const char* prompt) {
#ifdef TRIREME_WITH_EDIT
  char* typed = ::readline(prompt);
  if (!typed) return std::nullopt;
  std::string line = typed;
  std::free(typed);
  if (!line.empty()) ::add_history(line.c_str());
  return line;
#else
  std::fputs(prompt, stdout);
  std::fflush(stdout);
  std::string line;
  if (!std::getline(std::cin, line)) return std::nullopt;
  return line;
#endif
}

}  // namespace trireme
