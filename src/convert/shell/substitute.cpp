#include "convert/shell/substitute.hpp"

#include <algorithm>

namespace trireme::convert::shell {

std::optional<std::string> substitute(std::string_view command, std::string_view text) {
  constexpr std::size_t kNone = std::string_view::npos;
  if (command.size() < 4 || command[0] != 's') return std::nullopt;
  const std::size_t second = command.find(command[1], 2);
  const std::size_t third = second == kNone ? kNone : command.find(command[1], second + 1);
  if (third == kNone) return std::nullopt;
  const std::string_view name = command.substr(2, second - 2);
  const std::string_view value = command.substr(second + 1, third - second - 1);
  const std::string_view options = command.substr(third + 1);
  const bool plain = !name.empty() && name.find_first_of("\\.*[]^$\n") == kNone &&
                     value.find_first_of("\\&\n") == kNone;
  if (!plain || (!options.empty() && options != "g")) return std::nullopt;
  std::string result;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    std::string line(text.substr(0, end));
    text.remove_prefix(end);
    for (std::size_t at = line.find(name); at != kNone; at = line.find(name, at + value.size())) {
      line.replace(at, name.size(), value);
      if (options.empty()) break;
    }
    result += line;
  }
  return result;
}

}  // namespace trireme::convert::shell
