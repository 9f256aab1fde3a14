#include "plan/cluster/cluster_reader.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "plan/fit.hpp"

namespace trireme::plan {
namespace {

/// Throws BadValue.
double parse_rate(const std::string& text) {
  const std::string_view number = deck::leading_number(text);
  std::string_view unit(text);
  unit.remove_prefix(number.size());
  unit.remove_prefix(std::min(unit.find_first_not_of(' '), unit.size()));
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"GB/s", 1e9},         {"TB/s", 1e12},         {"MB/s", 1e6},
      {"Gbit/s", 1e9 / 8.0}, {"Tbit/s", 1e12 / 8.0}, {"Mbit/s", 1e6 / 8.0}};
  for (const auto& [name, bytes] : kUnits)
    if (unit == name && !number.empty()) {
      const double rate = deck::parse_real(number) * bytes;
      if (rate > 0) return rate;
    }
  throw deck::BadValue("expected a rate above 0, such as 25 GB/s or 200 Gbit/s");
}

}  // namespace

Section::Section(const deck::Item& item, std::string name, deck::Problems& problems)
    : item_(item), name_(std::move(name)), problems_(problems) {
  if (item.kind == deck::Item::Kind::mapping) {
    std::set<std::string> seen;
    for (const deck::Item& key : item.keys)
      if (!seen.insert(key.text).second)
        problems_.add(key.place, fmt::format("key '{}' is given twice", path(key.text)));
  } else if (item.kind != deck::Item::Kind::refused) {
    problems_.add(item.place, fmt::format("{}: expected a section, found {}",
                                          name_.empty() ? "the file" : name_, deck::found(item)));
  }
}

const deck::Item* Section::find(const std::string& key) {
  known_.insert(key);
  for (std::size_t i = 0; i < item_.keys.size(); ++i)
    if (item_.keys[i].text == key) return &item_.items[i];
  return nullptr;
}

template <typename Read>
auto Section::read(const std::string& key, Read read) -> std::optional<decltype(read(*find(key)))> {
  const deck::Item* item = find(key);
  if (!item || item->kind == deck::Item::Kind::refused) return std::nullopt;
  try {
    return read(*item);
  } catch (const deck::BadValue& error) {
    problems_.add(item->place,
                  fmt::format("{} = {}: {}", path(key), deck::found(*item), error.what()));
  }
  return std::nullopt;
}

bool Section::has(const std::string& key) { return find(key) != nullptr; }

double Section::number(const std::string& key, double fallback, const deck::Range& range) {
  const auto value = read(key, [&](const deck::Item& item) {
    const double number = deck::read_real(item);
    deck::require_in(range, number);
    return number;
  });
  return value.value_or(fallback);
}

std::int64_t Section::whole(const std::string& key, std::int64_t fallback,
                            const deck::Range& range) {
  const auto value = read(key, [&](const deck::Item& item) {
    const std::int64_t number = deck::read_whole(item);
    deck::require_in(range, static_cast<double>(number));
    return number;
  });
  return value.value_or(fallback);
}

std::string Section::text(const std::string& key, const std::string& fallback) {
  return read(key, [](const deck::Item& item) { return deck::read_text(item); }).value_or(fallback);
}

bool Section::flag(const std::string& key, bool fallback) {
  const auto value = read(key, [](const deck::Item& item) {
    const std::string text = deck::read_text(item);
    if (text != "true" && text != "false") throw deck::BadValue("expected true or false");
    return text == "true";
  });
  return value.value_or(fallback);
}

std::size_t Section::choice_of(const std::string& key, const std::vector<std::string_view>& names) {
  const auto value = read(key, [&](const deck::Item& item) {
    const auto found = std::ranges::find(names, deck::read_text(item));
    if (found == names.end())
      throw deck::BadValue(fmt::format("expected {}", fmt::join(names, ", ")));
    return static_cast<std::size_t>(found - names.begin());
  });
  return value.value_or(0);
}

double Section::memory(const std::string& key) {
  const auto value = read(key, [](const deck::Item& item) {
    try {
      return static_cast<double>(parse_memory("", deck::read_text(item)));
    } catch (const UsageError&) {
      throw deck::BadValue("expected a size, such as 80GiB, 80GB or 81920M");
    }
  });
  return value.value_or(0);
}

double Section::rate(const std::string& key) {
  return read(key, [](const deck::Item& item) { return parse_rate(deck::read_text(item)); })
      .value_or(0);
}

std::vector<const deck::Item*> Section::list(const std::string& key) {
  std::vector<const deck::Item*> items;
  const deck::Item* item = find(key);
  if (!item || item->kind == deck::Item::Kind::refused) return items;
  if (item->kind != deck::Item::Kind::list)
    problems_.add(item->place,
                  fmt::format("{}: expected a list, found {}", path(key), deck::found(*item)));
  for (const deck::Item& entry : item->items) items.push_back(&entry);
  return items;
}

const deck::Item* Section::section(const std::string& key) { return find(key); }

void Section::require(const std::string& key, const std::string& what) {
  if (!find(key) && item_.kind == deck::Item::Kind::mapping)
    problems_.add(item_.place, fmt::format("missing key '{}': {}", path(key), what));
}

void Section::refuse(const std::string& key, const std::string& why) {
  const deck::Item* item = find(key);
  problems_.add(item ? item->place : item_.place, fmt::format("{}: {}", path(key), why));
}

void Section::finish() {
  const std::vector<std::string_view> known(known_.begin(), known_.end());
  for (const deck::Item& key : item_.keys) {
    if (known_.contains(key.text)) continue;
    const std::string_view near = nearest(key.text, known);
    problems_.add(key.place,
                  fmt::format("unknown key '{}'{}", path(key.text),
                              near.empty() ? "" : fmt::format(" — did you mean '{}'?", near)));
  }
}

}  // namespace trireme::plan
