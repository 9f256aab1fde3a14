#include "deck/describe.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.hpp"
#include "deck/document.hpp"
#include "deck/schema.hpp"
#include "deck/suggest.hpp"

namespace trireme::deck {
namespace {

std::vector<std::string_view> split_path(std::string_view path) {
  std::vector<std::string_view> names;
  while (true) {
    const std::size_t dot = std::min(path.find('.'), path.size());
    names.push_back(path.substr(0, dot));
    if (dot == path.size()) return names;
    path.remove_prefix(dot + 1);
  }
}

// Whether leaving the key out would give the same value.
bool is_default(const Key& key, const Deck& deck) {
  if (!key.fallback.empty()) return key.write(deck) == key.write(fixed_defaults());
  if (!key.derive) return false;
  Deck derived = deck;
  key.derive(derived);
  return key.write(deck) == key.write(derived);
}

std::string default_text(const Key& key) {
  if (key.required) return "required";
  if (!key.fallback.empty()) return key.fallback;
  return key.fallback_words.empty() ? "not set" : key.fallback_words;
}

std::string restart_text(RestartRule rule) {
  switch (rule) {
    case RestartRule::free:
      return "may change it";
    case RestartRule::noted:
      return "may change it, and says so";
    case RestartRule::fixed:
      break;
  }
  return "must not change it";
}

// "cosine, linear, constant; not built yet: exponential"
std::string allowed_text(const Key& key) {
  if (key.rules.list.empty()) return "";
  std::vector<std::string> ready;
  std::vector<std::string> later;
  for (const std::string_view word : key.rules.list) {
    const bool built =
        key.built.empty() || std::find(key.built.begin(), key.built.end(), word) != key.built.end();
    (built ? ready : later).emplace_back(word);
  }
  return fmt::format("{}{}{}", fmt::join(ready, ", "),
                     later.empty() ? "" : "; not built yet: ", fmt::join(later, ", "));
}

// What is built of a key whose values are not words.
std::string built_text(const Key& key) {
  if (key.unbuilt) return "not built yet" + (key.reason.empty() ? "" : ": " + key.reason);
  if (key.built.empty() || !key.rules.list.empty()) return "";
  return fmt::format("only {} so far", alternatives(key.built));
}

std::string units_text(const Key& key) {
  std::vector<std::string_view> words;
  for (const Unit unit : key.rules.units) words.push_back(name_of(unit));
  return key.unit.empty() ? fmt::format("{}", fmt::join(words, ", ")) : key.unit;
}

std::string help_for_key(const Key& key) {
  std::string text = fmt::format("{}: {}\n", key.path, key.help);
  const auto line = [&](std::string_view label, const std::string& value) {
    if (!value.empty()) text += fmt::format("  {:<9}{}\n", label, value);
  };
  line("type", key.type);
  line("default", default_text(key));
  line("range", key.rules.range.text());
  line("allowed", allowed_text(key));
  line("unit", units_text(key));
  line("built", built_text(key));
  if (key.has_member()) line("restart", restart_text(key.restart));
  return text;
}

bool in_topic(const Key& key, std::string_view path) {
  return path.empty() || key.path == path || key.path.starts_with(std::string(path) + ".");
}

std::string help_for_section(std::string_view path) {
  std::string text;
  for (const Key& key : keys()) {
    if (!in_topic(key, path)) continue;
    text += fmt::format("{:<32} {} ({}){}\n", key.path, key.help, default_text(key),
                        key.unbuilt ? " [not built yet]" : "");
  }
  return text;
}

}  // namespace

std::string print_deck(const Deck& deck) {
  std::string text;
  std::vector<std::string_view> open;  // the sections that the last line stands in
  for (const Key& key : keys()) {
    if (!key.has_member()) continue;
    const auto names = split_path(key.path);
    const std::size_t depth = names.size() - 1;
    const auto parted = std::mismatch(open.begin(), open.end(), names.begin(), names.end() - 1);
    for (std::size_t level = parted.first - open.begin(); level < depth; ++level) {
      text += fmt::format("{:{}}{}:\n", "", 2 * level, names[level]);
    }
    open.assign(names.begin(), names.end() - 1);
    std::string value = key.write(deck);
    const bool has_word = value.empty() && !key.rules.word.empty();
    if (has_word) value = key.rules.word;
    if (value.empty()) {
      text += fmt::format("{:{}}# {}: not set\n", "", 2 * depth, names.back());
    } else {
      text += fmt::format("{:{}}{}: {}{}\n", "", 2 * depth, names.back(), value,
                          has_word || is_default(key, deck) ? "  # default" : "");
    }
  }
  return text;
}

std::string print_value(const Deck& deck, std::string_view path) {
  const Key* key = find_key(path);
  if (!key || !key->has_member()) {
    std::vector<std::string_view> paths;
    for (const Key& other : keys()) paths.push_back(other.path);
    const std::string_view meant = nearest(path, paths);
    throw UsageError("unknown key '{}'{}", path,
                     meant.empty() ? "" : fmt::format("; did you mean '{}'?", meant));
  }
  const std::string yaml = key->write(deck);
  Problems ignored("", {});
  const Item item = read_yaml(yaml, 0, ignored);
  return item.kind == Item::Kind::scalar ? item.text : yaml;
}

std::string help(std::string_view topic) {
  if (topic == "deck") {
    return help_for_section("") +
           "\nA length is a number with its unit, such as 2000 iterations, 64000 samples or 90 "
           "minutes; a\nbare number counts in what 'train' counts. Whole numbers may be written "
           "1.5e9 or 1_000.\nOn the command line, key=value sets a key and key= takes it back to "
           "its default; the last of\nseveral holds. '--help deck.section.key' says more of a "
           "key.\n";
  }
  const std::string_view path = topic.starts_with("deck.") ? topic.substr(5) : topic;
  if (const Key* key = find_key(path)) return help_for_key(*key);
  if (is_section(path)) return help_for_section(path);
  throw UsageError("the deck has no section or key '{}'{}", path, suggestion(path));
}

}  // namespace trireme::deck
