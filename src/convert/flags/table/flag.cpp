#include "convert/flags/table/flag.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/nearest.hpp"

namespace trireme::convert::flags {

const std::vector<Flag>& command_flags() {
  static const std::vector<Flag> table = [] {
    std::vector<Flag> rows;
    for (const auto& part : {model_flags(), training_flags(), data_flags(), system_flags()})
      rows.insert(rows.end(), part.begin(), part.end());
    return rows;
  }();
  return table;
}

const Flag* find_flag(const std::vector<Flag>& table, std::string_view name) {
  const auto same = [](char a, char b) { return a == b || (a == '-' && b == '_'); };
  const auto found = std::find_if(table.begin(), table.end(), [&](const Flag& flag) {
    return std::equal(flag.name.begin(), flag.name.end(), name.begin(), name.end(), same);
  });
  return found == table.end() ? nullptr : &*found;
}

std::string suggestion(const std::vector<Flag>& table, std::string_view name,
                       std::string_view dashes) {
  std::vector<std::string_view> names;
  for (const Flag& flag : table) names.push_back(flag.name);
  const std::string_view meant = nearest(name, names);
  return meant.empty() ? "" : fmt::format("; did you mean '{}{}'?", dashes, meant);
}

}  // namespace trireme::convert::flags
