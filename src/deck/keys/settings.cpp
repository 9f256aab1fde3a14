#include "deck/keys/settings.hpp"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/text.hpp"
#include "deck/value.hpp"

namespace trireme::deck {
namespace {

// How many numbers without a value stand in `mapping` from the key `first` on, after a key with
// one: what YAML makes of {split: 969,30,1}.
std::size_t loose_numbers(const Item& mapping, std::size_t first) {
  std::size_t end = first;
  while (end < mapping.keys.size() && mapping.items[end].kind == Item::Kind::null &&
         mapping.keys[end].kind == Item::Kind::scalar &&
         leading_number(mapping.keys[end].text).size() == mapping.keys[end].text.size() &&
         !mapping.keys[end].text.empty())
    ++end;
  const bool after_value = first > 0 && mapping.items[first - 1].kind == Item::Kind::scalar;
  return after_value ? end - first : 0;
}

// The first character of a UTF-8 text that is not ASCII, as U+200B; "" where there is none.
std::string foreign_character(std::string_view text) {
  const auto begin = std::ranges::find_if(text, [](char c) { return (c & 0x80) != 0; });
  if (begin == text.end()) return "";
  const auto lead = static_cast<unsigned char>(*begin);
  const int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
  unsigned code = lead & (0x3F >> more);
  for (int i = 1; i <= more && begin + i < text.end(); ++i)
    code = code << 6 | (static_cast<unsigned char>(begin[i]) & 0x3F);
  return fmt::format("U+{:04X}", code);
}

// How the unknown key `path` may have been meant.
std::string way_out(const std::string& path) {
  const auto has = [&](std::string_view part) { return path.find(part) != std::string::npos; };
  if (has(":")) return " — write a space after the colon";
  if (has("\uff1a")) return " — write the ASCII colon ':' and a space";
  if (has("\u00a0")) return " — it has a no-break space; indent with spaces";
  if (has("=")) return " — in a deck it is KEY: VALUE, inside the key's section";
  if (path.ends_with(' ')) return " — take away the blank after it";
  if (const std::string character = foreign_character(path); !character.empty())
    return fmt::format(" — it has the character {}; keys are ASCII", character);
  return suggestion(path);
}

// What to write for the section `path` where a value stands.
std::string section_form(const std::string& path, const Item& item) {
  const auto names = children(path);
  const bool has_value = std::ranges::find(names, "value") != names.end();
  if (!has_value || item.kind != Item::Kind::scalar) return "";
  return fmt::format("; write {{value: {}}}", printable(item.text));
}

}  // namespace

void Settings::read_deck(std::string_view text, bool has_overrides) {
  const Item root = read_yaml(text, 0, problems_);
  if (root.kind == Item::Kind::refused) {
    readable_ = false;
  } else if (root.kind == Item::Kind::null && !has_overrides) {
    readable_ = false;
    problems_.add(root.place, "an empty deck; inputs/quickstart.yaml is one to start from");
  } else if (root.kind == Item::Kind::mapping) {
    put_section("", root);
  } else if (root.kind != Item::Kind::null) {
    readable_ = false;
    problems_.add(root.place, fmt::format("a deck is made of sections such as 'model:', found {}",
                                          found(root)));
  }
}

void Settings::read_override(const std::string& text, int source) {
  const Place place{source, 0, 0};
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    const bool deck = text.ends_with(".yaml") || text.ends_with(".yml");
    const std::size_t colon = std::min(text.find(':'), text.size());
    const std::string key = text.substr(0, colon);
    if (deck)
      problems_.add(place, fmt::format("'{}' is a second deck: one is read", text));
    else if (find_key(key) || is_section(key))
      problems_.add(place, fmt::format("an override is written key=value: {}={}", key,
                                       colon < text.size() ? text.substr(colon + 1) : "VALUE"));
    else
      problems_.add(place, "an override is written key=value, such as model.layers=12");
    return;
  }
  const std::string path = text.substr(0, equals);
  if (text == "sweep=") {
    sweep_.reset();
    return;
  }
  if (equals + 1 == text.size() && (find_key(path) != nullptr || is_section(path))) {
    restore_defaults(path, place);
    return;
  }
  put(path, read_yaml(std::string_view(text).substr(equals + 1), source, problems_), place);
}

// Forgets what was given for the key, or for all keys of the section, that is called `path`.
void Settings::restore_defaults(const std::string& path, const Place& place) {
  std::erase_if(values_, [&](const auto& setting) {
    return setting.first == path || setting.first.starts_with(path + ".");
  });
  if (is_section(path)) sections_[path] = place;
}

// Reports a name that is not a plain word or that its section has already.
bool Settings::is_new_name(const std::string& path, const Item& key,
                           std::map<std::string, Place>& seen) {
  if (key.kind == Item::Kind::refused) return false;
  if (key.kind != Item::Kind::scalar) {
    problems_.add(key.place, fmt::format("a key must be a word, found {}", found(key)));
    return false;
  }
  if (key.text.empty()) {
    problems_.add(key.place, "a key must be a word, found \"\"");
    return false;
  }
  if (key.text == "<<") {
    problems_.add(key.place, "merge keys ('<<') have no place in a deck; write the keys out");
    return false;
  }
  const auto [first, is_new] = seen.try_emplace(key.text, key.place);
  if (is_new) return true;
  const Place& place = first->second;
  problems_.add(key.place, place.source > 0 ? fmt::format("repeated key '{}'", printable(path))
                                            : fmt::format("repeated key '{}' (first in line {})",
                                                          printable(path), place.line));
  return false;
}

// Says how to write the list that the `numbers` keys from `first` on belong to.
void Settings::refuse_loose_numbers(const Item& mapping, std::size_t first, std::size_t numbers) {
  std::string list = mapping.items[first - 1].text;
  for (std::size_t i = first; i < first + numbers; ++i) list += "," + mapping.keys[i].text;
  problems_.add(mapping.keys[first].place,
                fmt::format("a list inside {{}} needs quotes: {}: \"{}\"",
                            printable(mapping.keys[first - 1].text), printable(list)));
}

void Settings::put_section(const std::string& path, const Item& mapping) {
  std::map<std::string, Place> seen;
  for (std::size_t i = 0; i < mapping.keys.size(); ++i) {
    const Item& key = mapping.keys[i];
    const std::string child = path.empty() ? key.text : path + "." + key.text;
    if (const std::size_t numbers = loose_numbers(mapping, i); numbers > 0) {
      refuse_loose_numbers(mapping, i, numbers);
      i += numbers - 1;
      continue;
    }
    if (!is_new_name(child, key, seen)) {
      // What a repeated section holds is not missing as well.
      const bool section = mapping.items[i].kind == Item::Kind::mapping && is_section(child);
      if (section && key.kind == Item::Kind::scalar) put_section(child, mapping.items[i]);
      continue;
    }
    const bool dotted = key.text.find('.') != std::string::npos;
    if (dotted && (find_key(child) != nullptr || is_section(child))) {
      const std::size_t dot = key.text.find('.');
      problems_.add(key.place, fmt::format("write '{}' as '{}' inside the section '{}:'", key.text,
                                           key.text.substr(dot + 1), key.text.substr(0, dot)));
      continue;
    }
    // Inside an override every place is the override.
    const Place place = key.place.source > 0 ? Place{key.place.source, 0, 0} : key.place;
    put(child, mapping.items[i], place);
  }
}

void Settings::put(const std::string& path, const Item& item, const Place& place) {
  if (item.kind == Item::Kind::refused) return;
  if (path == "sweep" || path.starts_with("sweep.")) {
    sweep_ = place;
  } else if (const Key* key = find_key(path)) {
    values_[path] = {key, item, place};
  } else if (!is_section(path)) {
    problems_.add(place, fmt::format("unknown key '{}'{}", printable(path), way_out(path)));
  } else if (item.kind == Item::Kind::mapping) {
    sections_.try_emplace(path, place);
    put_section(path, item);
  } else if (item.kind == Item::Kind::null && place.source == 0) {
    sections_.try_emplace(path, place);
  } else {
    const auto names = children(path);
    problems_.add(place,
                  fmt::format("'{}' is a section with the keys {}; found {}{}", path,
                              fmt::join(names, ", "), found(item), section_form(path, item)));
  }
}

}  // namespace trireme::deck
