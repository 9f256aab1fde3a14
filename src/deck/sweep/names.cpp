#include "deck/sweep/names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdint>

namespace trireme::deck {
namespace {

// File systems allow 255 bytes; the sweep's own files add an ending.
constexpr std::size_t kLongestName = 120;

std::string_view last_name(std::string_view key) { return key.substr(key.rfind('.') + 1); }

bool is_plain(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// Drops brackets, quotes and blanks; what else is no part of a name becomes '-'.
std::string value_name(const std::string& value) {
  if (value.empty()) return "default";
  std::string name;
  for (const char c : value) {
    if (std::string_view("[]{}\"' ").find(c) != std::string_view::npos) continue;
    name += is_plain(c) || c == '.' || c == '+' ? c : '-';
  }
  return name;
}

}  // namespace

std::uint32_t checksum(std::string_view text) {
  std::uint32_t hash = 2166136261u;
  for (const char c : text) hash = (hash ^ static_cast<std::uint8_t>(c)) * 16777619u;
  return hash;
}

bool is_run_name(std::string_view name) {
  const auto allowed = [](char c) {
    return is_plain(c) || std::string_view("._+=,-").find(c) != std::string_view::npos;
  };
  return !name.empty() && name.size() <= kLongestName && name[0] != '.' && name[0] != '-' &&
         std::all_of(name.begin(), name.end(), allowed);
}

std::string run_name(const std::string& case_name, const std::vector<SweptValue>& values,
                     const std::vector<std::string>& keys) {
  std::string name = case_name;
  for (const SweptValue& each : values) {
    const auto alike = std::count_if(keys.begin(), keys.end(), [&](const std::string& key) {
      return last_name(key) == last_name(each.key);
    });
    name += fmt::format("{}{}={}", name.empty() ? "" : ",",
                        alike > 1 ? std::string_view(each.key) : last_name(each.key),
                        value_name(each.value));
  }
  if (name.size() <= kLongestName) return name;
  return fmt::format("{}+{:08x}", name.substr(0, kLongestName - 9), checksum(name));
}

}  // namespace trireme::deck
