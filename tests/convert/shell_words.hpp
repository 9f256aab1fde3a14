// The commands that a shell script runs, as text.
#pragma once

#include <fmt/ranges.h>

#include <string>
#include <string_view>
#include <vector>

#include "convert/shell/script.hpp"

namespace trireme::convert::shell {

/// The commands that `text` runs with `arguments`, words joined by `|`, marks as {source}.
inline std::vector<std::string> command_lines(std::string_view text,
                                              const Definitions& definitions = {},
                                              const std::vector<std::string>& arguments = {}) {
  std::vector<std::string> lines;
  for (const RunCommand& command : follow(text, "test.sh", definitions, arguments).commands) {
    std::string& line = lines.emplace_back(fmt::format("{}", fmt::join(command.words, "|")));
    for (char& c : line) c = c == kUnknownBegin ? '{' : c == kUnknownEnd ? '}' : c;
  }
  return lines;
}

}  // namespace trireme::convert::shell
