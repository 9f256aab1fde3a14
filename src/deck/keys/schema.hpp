// The table of keys, which parsing, checking, help, printing and restarts all read; and which
// key each value of a deck and its overrides belongs to.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "deck/deck.hpp"
#include "deck/value.hpp"

namespace trireme::deck {

/// One key: what help says about it and how it is bound to its member of Deck.
struct Key {
  std::string path;  ///< "model.dropout.attention"
  std::string type;  ///< for people
  std::string help;  ///< one line
  RestartRule restart = RestartRule::free;
  Rules rules;
  std::string unit;                ///< of a plain number
  bool required = false;           ///< an error when missing
  std::string fallback;            ///< the default as YAML; "" where there is none
  std::string fallback_words;      ///< the default in words, where it is no fixed value
  std::vector<std::string> built;  ///< the values whose feature is built; empty: all of them
  bool unbuilt = false;            ///< the key has no feature, and so no member, yet
  bool of_sweep = false;         ///< trireme-sweep reads it; the deck of a run has no member for it
  std::optional<Family> family;  ///< that alone has the key; its member is unset for another
  std::string reason;            ///< why something is not built, where there is more to say

  /// Whether a Deck holds the key's value.
  bool has_member() const { return !unbuilt && !of_sweep; }

  /// Reads `item` into the member, with a Length's bare unit from `rules`. Throws BadValue.
  std::function<void(Deck&, const Item&, const Rules&)> read;
  /// The member as YAML; "" when an optional is not set and has no word for that.
  std::function<std::string(const Deck&)> write;
  /// Sets the member to a default that depends on other members.
  std::function<void(Deck&)> derive;
};

/// All keys, in the order in which the effective deck is printed.
const std::vector<Key>& keys();

/// The part of a key's path after its last dot.
inline std::string_view last_name(std::string_view path) {
  return path.substr(path.rfind('.') + 1);
}

/// The key called `path`, or nullptr.
const Key* find_key(std::string_view path);

/// Whether `path` is a section: some key's path continues it.
bool is_section(std::string_view path);

/// The names directly under `section` ("" for the deck itself), in order, each once.
std::vector<std::string_view> children(std::string_view section);

/// " — did you mean 'x'?" for the unknown `path`: a key of its section that differs by a letter,
/// the key that another program calls so, a similar key of its section or of a section with a
/// similar name, or the keys of other sections with its last name; " — " and a note on a feature
/// that has no key; or "".
std::string suggestion(std::string_view path);

/// The default of every key that has a fixed one; all else is empty.
const Deck& fixed_defaults();

/// "a, b or c".
std::string alternatives(const std::vector<std::string>& words);

/// A name of Megatron-LM, DeepSpeed, PyTorch, Hugging Face, nanotron or llm.c.
struct Synonym {
  std::string_view name;  ///< in small letters, words joined by `_`
  std::string_view key;   ///< the deck's key; "" if there is none
  std::string_view note;  ///< what else to know, without a full stop; "" if nothing
};

/// All synonyms, several of a key in turn.
const std::vector<Synonym>& synonyms();

/// The synonym called `name`, whose letters may be capital and whose words may be joined by `-`,
/// `_` or spaces, or nullptr.
const Synonym* find_synonym(std::string_view name);

/// The value among `words` for which other programs write `text` (bf16 for bfloat16), or "".
std::string_view synonymous_value(std::string_view text,
                                  const std::vector<std::string_view>& words);

/// `name` in small letters, without `-`, `_`, `.` and spaces.
std::string plain_name(std::string_view name);

// Which key each value of a deck and its overrides belongs to.

/// One value with the key it belongs to.
struct Setting {
  const Key* key = nullptr;
  Item item;
  Place place;
};

/// The values of a deck and its overrides by their keys. What belongs to none is reported.
class Settings {
 public:
  explicit Settings(Problems& problems) : problems_(problems) {}

  /// Reads the deck. An empty one is in order where overrides follow.
  void read_deck(std::string_view text, bool has_overrides);

  /// Reads `key=value`, the override number `source`, which replaces what was read before.
  void read_override(const std::string& text, int source);

  /// By the key's path.
  const std::map<std::string, Setting, std::less<>>& values() const { return values_; }

  /// Where each section begins, by its path.
  const std::map<std::string, Place, std::less<>>& sections() const { return sections_; }

  /// Whether the deck is YAML with sections: otherwise what it lacks is not known.
  bool readable() const { return readable_; }

  /// Where the deck has a sweep section, unless an override has taken it away.
  const std::optional<Place>& sweep() const { return sweep_; }

  /// Where a key that is missing belongs: its section, or nowhere in particular.
  Place place_of_section(std::string_view path) const {
    const auto section = sections_.find(path.substr(0, path.rfind('.')));
    return section == sections_.end() ? Place{} : section->second;
  }

 private:
  void put(const std::string& path, const Item& item, const Place& place);
  void put_section(const std::string& path, const Item& mapping);
  void restore_defaults(const std::string& path, const Place& place);
  void refuse_loose_numbers(const Item& mapping, std::size_t first, std::size_t numbers);
  bool is_new_name(const std::string& path, const Item& key, std::map<std::string, Place>& seen);

  Problems& problems_;
  std::map<std::string, Setting, std::less<>> values_;
  std::map<std::string, Place, std::less<>> sections_;
  std::optional<Place> sweep_;
  bool readable_ = true;
};

}  // namespace trireme::deck
