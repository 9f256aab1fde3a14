#include "core/clock.hpp"

#include <algorithm>
#include <ctime>
#include <string_view>

#include "core/error.hpp"

namespace trireme {

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string local_date_time(double unix_seconds) {
  const auto whole = static_cast<std::time_t>(unix_seconds);
  std::tm parts{};
  localtime_r(&whole, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts)};
}

std::string human_duration(double seconds) {
  const long total = seconds > 0 ? static_cast<long>(seconds + 0.5) : 0;
  if (total >= 86400) return fmt::format("{}d{:02d}h", total / 86400, total / 3600 % 24);
  if (total >= 3600) return fmt::format("{}h{:02d}m", total / 3600, total / 60 % 60);
  if (total >= 60) return fmt::format("{}m{:02d}s", total / 60, total % 60);
  return fmt::format("{}s", total);
}

double parse_duration(const std::string& text) {
  const auto fail = [&] { return UsageError("'{}' is not a duration; write HH:MM:SS", text); };
  constexpr const char* kDigits = "0123456789";
  std::string_view rest = text;
  // Takes a number of at most six digits that ends before `separator`, or at the end of the text.
  const auto take_number = [&](char separator) {
    const std::size_t length = std::min(rest.find_first_not_of(kDigits), rest.size());
    const bool ends = length == rest.size() ? separator == '\0' : rest[length] == separator;
    if (length == 0 || length > 6 || !ends) throw fail();
    const double value = std::stod(std::string(rest.substr(0, length)));
    rest.remove_prefix(std::min(length + 1, rest.size()));
    return value;
  };
  double seconds = 0;
  if (rest.find('-') != std::string_view::npos) seconds = take_number('-') * 24;
  const auto colons = std::count(rest.begin(), rest.end(), ':');
  if (colons != 1 && colons != 2) throw fail();
  if (colons == 2) seconds += take_number(':');
  seconds = (seconds * 60 + take_number(':')) * 60;
  return seconds + take_number('\0');
}

}  // namespace trireme
