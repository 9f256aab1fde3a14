// YAML text as a tree of items that know where they stand, and the errors of a deck, collected and
// reported together.
//
// Made from yaml-cpp's events rather than its nodes, because the events keep what nodes lose:
// repeated keys, quotes, aliases and tags.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"

namespace trireme::deck {

/// Where something stands. Source 0 is the deck file, k > 0 the k-th override. Lines and columns
/// count from 1; 0 means no particular place in the source.
struct Place {
  int source = 0;
  int line = 0;
  int column = 0;

  /// Order of the report: the file by line and column, what has no place in it, then overrides.
  bool before(const Place& other) const;
};

/// The errors of a deck, also one by one.
class InvalidDeck : public DeckError {
 public:
  struct Line {
    std::string text;      ///< the whole line, without its end
    int source = 0;        ///< of its place
    std::string message;   ///< the line without its place
    bool missing = false;  ///< a key that the deck must have is not there
  };

  /// Its text has all lines and a closing one: "3 errors; nothing was started. ...".
  explicit InvalidDeck(std::vector<Line> lines);
  /// One error without a place in the deck.
  explicit InvalidDeck(const std::string& line) : InvalidDeck({{line, 0, line}}) {}

  const std::vector<Line>& lines() const { return lines_; }

 private:
  std::vector<Line> lines_;
};

/// Collects errors with their places.
class Problems {
 public:
  /// `filename` names source 0, overrides[k - 1] source k.
  Problems(std::string filename, std::vector<std::string> overrides);

  /// `missing`: see InvalidDeck::Line.
  void add(const Place& place, std::string message, bool missing = false);
  bool empty() const { return problems_.empty(); }

  /// Throws one InvalidDeck with a line for each error, sorted by place.
  [[noreturn]] void raise() const;
  void raise_if_any() const;

 private:
  struct Problem {
    Place place;
    std::string message;
    bool missing;
  };

  std::string filename_;
  std::vector<std::string> overrides_;
  std::vector<Problem> problems_;
};

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
