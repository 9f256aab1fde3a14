#include "core/clock.hpp"

#include <regex>

#include "core/error.hpp"

namespace trireme {

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string human_duration(double seconds) {
  const long total = seconds > 0 ? static_cast<long>(seconds + 0.5) : 0;
  if (total >= 86400) return fmt::format("{}d{:02d}h", total / 86400, total / 3600 % 24);
  if (total >= 3600) return fmt::format("{}h{:02d}m", total / 3600, total / 60 % 60);
  if (total >= 60) return fmt::format("{}m{:02d}s", total / 60, total % 60);
  return fmt::format("{}s", total);
}

double parse_duration(const std::string& text) {
  static const std::regex pattern(R"((?:(\d{1,6})-)?(?:(\d{1,6}):)?(\d{1,6}):(\d{1,2}))");
  std::smatch match;
  if (!std::regex_match(text, match, pattern))
    throw UsageError("'{}' is not a duration; write HH:MM:SS", text);
  const auto number = [&](int group) {
    return match[group].matched ? std::stod(match[group]) : 0.0;
  };
  return ((number(1) * 24 + number(2)) * 60 + number(3)) * 60 + number(4);
}

}  // namespace trireme
