// Which key each value of a deck and its overrides belongs to.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "deck/document.hpp"
#include "deck/keys/schema.hpp"

namespace trireme::deck {

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
