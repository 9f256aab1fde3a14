// YAML text as a tree of items that know where they stand.
//
// Made from yaml-cpp's events rather than its nodes, because the events keep what nodes lose:
// repeated keys, quotes, aliases and tags.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "deck/problems.hpp"

namespace trireme::deck {

/// One YAML value.
struct Item {
  enum class Kind {
    null,     ///< nothing written, `~` or `null`
    scalar,   ///< `text` holds it, without quotes
    list,     ///< `items`
    mapping,  ///< `items[i]` belongs to `keys[i]`
    refused,  ///< already reported: an alias, an anchor or a tag
  };

  Kind kind = Kind::null;
  Place place;
  std::string text;
  bool quoted = false;
  std::vector<Item> keys;
  std::vector<Item> items;
};

/// Whether `text` is what a deck may hold as one line: UTF-8 without control characters.
bool is_plain_line(std::string_view text);

/// `text` as a part of one line: without control characters, cut when long.
std::string printable(std::string_view text);

/// How an error names what was found: `12`, `"12"`, `a list`, `a section` or `nothing`.
std::string found(const Item& item);

/// Reads one YAML document. What a deck may not hold (aliases, anchors, tags, control characters,
/// text that is not UTF-8, malformed YAML, a second document, more than 1 MiB) is added to
/// `problems`; malformed text gives a refused item. `source` goes into every Place.
Item read_yaml(std::string_view text, int source, Problems& problems);

}  // namespace trireme::deck
