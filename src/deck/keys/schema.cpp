#include "deck/keys/schema.hpp"

#include <algorithm>

#include "core/text.hpp"
#include "deck/keys/row.hpp"

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

}  // namespace trireme::deck
