#include "deck/schema.hpp"

#include <algorithm>

#include "deck/suggest.hpp"

namespace trireme::deck {
namespace {

std::string_view last_name(std::string_view path) { return path.substr(path.rfind('.') + 1); }

bool is_under(std::string_view path, std::string_view section) {
  return section.empty() ||
         (path.size() > section.size() && path.starts_with(section) && path[section.size()] == '.');
}

}  // namespace

const Key* find_key(std::string_view path) {
  const auto& table = keys();
  const auto match =
      std::find_if(table.begin(), table.end(), [&](const Key& key) { return key.path == path; });
  return match == table.end() ? nullptr : &*match;
}

bool is_section(std::string_view path) {
  return std::any_of(keys().begin(), keys().end(),
                     [&](const Key& key) { return is_under(key.path, path); });
}

std::vector<std::string_view> children(std::string_view section) {
  std::vector<std::string_view> names;
  for (const Key& key : keys()) {
    if (!is_under(key.path, section)) continue;
    const std::string_view path = key.path;
    const std::string_view rest = path.substr(section.empty() ? 0 : section.size() + 1);
    const std::string_view name = rest.substr(0, rest.find('.'));
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

std::string suggestion(std::string_view path) {
  const std::string_view name = last_name(path);
  const std::string_view section =
      name.size() == path.size() ? "" : path.substr(0, path.size() - name.size() - 1);
  std::string_view meant = nearest(name, children(section));
  if (meant.empty()) {
    // A key put into the wrong section keeps its name.
    for (const Key& key : keys()) {
      if (last_name(key.path) == name) meant = key.path;
    }
  }
  return meant.empty() ? "" : fmt::format(" — did you mean '{}'?", meant);
}

const Deck& fixed_defaults() {
  static const Deck defaults = [] {
    Deck deck;
    for (const Key& key : keys()) {
      if (!key.has_member() || key.fallback.empty()) continue;
      Item item;
      item.kind = Item::Kind::scalar;
      item.text = key.fallback;
      key.read(deck, item, key.rules);
    }
    return deck;
  }();
  return defaults;
}

std::string alternatives(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? " or " : ", ";
    text += words[i];
  }
  return text;
}

}  // namespace trireme::deck
