#include "deck/keys/schema.hpp"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/system/process.hpp"
#include "core/text.hpp"
#include "deck/keys/row.hpp"
#include "deck/value.hpp"

namespace trireme::deck {
namespace {

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

namespace {

/// The section nearest to the misspelt `section` that has a key called, or nearly called, `name`:
/// its key's path; or "".
std::string in_similar_section(std::string_view section, std::string_view name) {
  std::vector<std::string_view> sections;
  for (const Key& key : keys()) {
    const std::string_view path = key.path;
    for (std::size_t dot = path.find('.'); dot != path.npos; dot = path.find('.', dot + 1))
      if (sections.empty() || sections.back() != path.substr(0, dot))
        sections.push_back(path.substr(0, dot));
  }
  const std::string_view meant = nearest(section, sections);
  if (meant.empty()) return "";
  const std::string_view child = nearest(name, children(meant));
  return child.empty() ? "" : fmt::format("{}.{}", meant, child);
}

/// "'a', 'b' or 'c'": the keys of all sections whose last name is `name`.
std::string keys_called(std::string_view name) {
  std::vector<std::string> found;
  for (const Key& key : keys())
    if (last_name(key.path) == name) found.push_back(fmt::format("'{}'", key.path));
  return alternatives(found);
}

/// "'a'": what the unknown key `path` was probably meant to be, or "".
std::string meant_by(std::string_view path, const Synonym* synonym) {
  const std::string_view name = last_name(path);
  const std::string_view section =
      name.size() == path.size() ? "" : path.substr(0, path.size() - name.size() - 1);
  // One wrong letter is likelier than another program's name, and that likelier than several.
  const std::string_view sibling = nearest(name, children(section));
  const bool one_letter = !sibling.empty() && edit_distance(name, sibling) <= 1;
  if (synonym != nullptr && !synonym->key.empty() && !one_letter)
    return fmt::format("'{}'", synonym->key);
  if (!sibling.empty()) return fmt::format("'{}'", sibling);
  if (!section.empty() && !is_section(section))
    if (const std::string key = in_similar_section(section, name); !key.empty())
      return fmt::format("'{}'", key);
  return keys_called(name);
}

}  // namespace

std::string suggestion(std::string_view path) {
  const Synonym* synonym = find_synonym(path);
  if (synonym == nullptr) synonym = find_synonym(last_name(path));
  const std::string meant = meant_by(path, synonym);
  const bool of_synonym =
      synonym != nullptr && (synonym->key.empty() || meant == fmt::format("'{}'", synonym->key));
  const std::string note(of_synonym ? synonym->note : "");
  if (meant.empty()) return note.empty() ? "" : fmt::format(" — {}", note);
  return fmt::format(" — did you mean {}?{}", meant,
                     note.empty() ? "" : fmt::format(" ({})", note));
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

const std::vector<Key>& keys() {
  static const std::vector<Key> table = [] {
    std::vector<Key> rows;
    run_keys(rows);
    model_keys(rows);
    bert_model_keys(rows);
    llama_keys(rows);
    parallel_keys(rows);
    arithmetic_keys(rows);
    optimizer_keys(rows);
    data_keys(rows);
    bert_data_keys(rows);
    train_keys(rows);
    log_keys(rows);
    cluster_keys(rows);
    sweep_keys(rows);
    return rows;
  }();
  return table;
}

// ---- the values of a deck and its overrides

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

// Whether YAML takes a part of an override's `value` for a comment, or newlines for blanks.
bool is_cut(std::string_view value, const Item& item) {
  if (item.kind == Item::Kind::null) return value.find('#') != value.npos;
  if (item.kind != Item::Kind::scalar || item.quoted) return false;
  if (value.find_first_of("#\n") == value.npos) return false;
  constexpr const char* kBlanks = " \t\r\n";
  const std::size_t begin = value.find_first_not_of(kBlanks);
  return item.text != value.substr(begin, value.find_last_not_of(kBlanks) + 1 - begin);
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
  const std::string_view value = std::string_view(text).substr(equals + 1);
  const Item item = read_yaml(value, source, problems_);
  if (is_cut(value, item))
    problems_.add(
        place, fmt::format("YAML reads '{}', as a blank and '#' begin a comment and a newline is a "
                           "blank: leave it out, or quote the text, for the shell as well: {}",
                           found(item), shell_word(path + "=" + write_text(std::string(value)))));
  else
    put(path, item, place);
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
