// Values of a deck: YAML text as a tree of items that know where they stand; the errors of a
// deck, collected and reported together; from items to C++ types and back, one Codec per type;
// and numbers as people write them: 12, 1_000, 1.5e9, -2e-3, counts as 10k or 1.5B, shares as
// 5%.
//
// Items are made from yaml-cpp's events rather than its nodes, because the events keep what
// nodes lose: repeated keys, quotes, aliases and tags.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "deck/deck.hpp"

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

// Reading values throws BadValue, whose message continues "model.layers = 'x': ". Writing gives
// YAML that reads back to the same value.

/// What is wrong with one value, without its key or place.
struct BadValue : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The numbers that a key allows.
struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false;   ///< `low` itself is outside
  bool high_open = false;  ///< `high` itself is outside

  bool contains(double value) const;
  /// "at least 1", "above 0", "from 0 to 3", "from 0 to below 1"; "" when nothing is excluded.
  std::string text() const;
};

/// What reading one value depends on, apart from the value.
struct Rules {
  Range range;
  std::vector<Unit> units;             ///< those a Length may have
  std::string word;                    ///< stands for "not set" of an optional, such as `auto`
  std::vector<std::string_view> list;  ///< the words of an enumeration
  std::vector<std::string> built;      ///< those whose feature is built; empty: all of them
  bool counts = false;           ///< a count: 10k, 1.5M and 2B are thousands, millions, billions
  Unit bare = Unit::iterations;  ///< the unit of a Length without one
};

/// A whole number: `12`, `1_000`, `1.5e9`; if it `counts`, `10k`, too. Throws BadValue when it is
/// none, has a leading zero, or does not fit into 64 bits.
std::int64_t read_whole(const Item& item, bool counts = false);

/// A finite number. Throws BadValue.
double read_real(const Item& item);

/// A text that is not empty. Throws BadValue.
std::string read_text(const Item& item);

/// A Length whose unit is one of `rules.units`: `2000 iterations`, `10k`, `90min`, `1:30:00`,
/// `1h30m`, `2 days`, `5%`. Throws BadValue.
Length read_length(const Item& item, const Rules& rules);

/// The time that a program's `option` gives, in seconds: as in the deck (`90min`, `1.5 hours`,
/// `1:30:00`) or in Slurm (`90:00`, `1-12:00:00`). Throws UsageError.
double read_time_option(const std::string& option, const std::string& text);

/// Throws BadValue unless `value` lies in the range.
void require_in(const Range& range, double value);

/// One of the words of an enumeration, `rules.list`, as its index. Throws BadValue that lists those
/// that are built.
std::size_t read_choice(const Item& item, const Rules& rules);

/// `text` as a YAML scalar, quoted where it has to be.
std::string write_text(const std::string& text);

/// `key=text` as an override that gives a key of text this value: quoted only where YAML would read
/// something else.
std::string text_override(const std::string& key, const std::string& text);

/// "2000 iterations", "1 sample", "0.01" for a fraction.
std::string write_length(const Length& length);

/// "101-200".
std::string write_range(const IterationRange& range);

/// Whether `text` is a decimal number. Throws BadValue for one that YAML reads otherwise (010) or
/// whose exponent no number has.
bool is_decimal(std::string_view text);

/// Whether a whole number may end in k (10^3), M (10^6), B or G (10^9), or T (10^12).
enum class Suffix { none, allowed };

/// `text` as a whole number; exact, also from `1.5e9`, and with `suffix` from `1.5B`. Throws
/// BadValue when it is none or does not fit into 64 bits.
std::int64_t parse_whole(std::string_view text, Suffix suffix = Suffix::none);

/// `text` as a floating-point number, rounded once; `5%` is 0.05. Throws BadValue when it is none
/// or out of range.
double parse_real(std::string_view text);

/// The number at the head of `text`, without what follows it: "1.5e3" of "1.5e3 samples".
std::string_view leading_number(std::string_view text);

/// `text`, hours, minutes and seconds such as `1:30:00`, in seconds; nothing when it has no colon.
/// Throws BadValue when it has one and is no such time.
std::optional<std::int64_t> parse_clock(std::string_view text);

/// "1, 2, 4 or 8": the divisors of `number` that are multiples of `factor`, which divides it, and
/// not below `least`; the six nearest to `near` where there are more.
std::string divisor_list(std::int64_t number, std::int64_t near, std::int64_t factor = 1,
                         std::int64_t least = 1);
/// The same of those that `fits` accepts.
std::string divisor_list(std::int64_t number, std::int64_t near,
                         const std::function<bool(std::int64_t)>& fits);

template <typename T>
struct Codec;

template <>
struct Codec<std::int64_t> {
  static constexpr const char* kType = "whole number";
  static std::int64_t read(const Item& item, const Rules& rules);
  static std::string write(std::int64_t value) { return fmt::format("{}", value); }
};

template <>
struct Codec<double> {
  static constexpr const char* kType = "number";
  static double read(const Item& item, const Rules& rules);
  static std::string write(double value) { return fmt::format("{}", value); }
};

template <>
struct Codec<bool> {
  static constexpr const char* kType = "true or false";
  static bool read(const Item& item, const Rules& rules);
  static std::string write(bool value) { return value ? "true" : "false"; }
};

template <>
struct Codec<std::string> {
  static constexpr const char* kType = "text";
  static std::string read(const Item& item, const Rules&) { return read_text(item); }
  static std::string write(const std::string& value) { return write_text(value); }
};

template <>
struct Codec<Length> {
  static constexpr const char* kType = "number with a unit";
  static Length read(const Item& item, const Rules& rules) { return read_length(item, rules); }
  static std::string write(const Length& value) { return write_length(value); }
};

/// Layers per stage: a list, or `0-11-8-8-5-0`.
template <>
struct Codec<std::vector<std::int64_t>> {
  static constexpr const char* kType = "list of whole numbers";
  static std::vector<std::int64_t> read(const Item& item, const Rules& rules);
  static std::string write(const std::vector<std::int64_t>& value);
};

/// Weights: a list, or `969,30,1`.
template <>
struct Codec<std::vector<double>> {
  static constexpr const char* kType = "list of numbers";
  static std::vector<double> read(const Item& item, const Rules& rules);
  static std::string write(const std::vector<double>& value);
};

/// Datasets: a prefix, or a list of weights and prefixes in turn, or of prefixes alone.
template <>
struct Codec<Datasets> {
  static constexpr const char* kType = "text, or list of weight, text, ...";
  static Datasets read(const Item& item, const Rules& rules);
  static std::string write(const Datasets& value);
};

/// Names of datasets: a section of `name: prefix`.
template <>
struct Codec<Corpora> {
  static constexpr const char* kType = "section of name: text";
  static Corpora read(const Item& item, const Rules& rules);
  static std::string write(const Corpora& value);
};

/// Kinds of nodes: a list, or `1*a100:8, 2*a10:4`. Each has its number of nodes if there are
/// several, which all have GPUs.
template <>
struct Codec<std::vector<NodeKind>> {
  static constexpr const char* kType = "list of [NODES*][TYPE:]GPUS";
  static std::vector<NodeKind> read(const Item& item, const Rules& rules);
  static std::string write(const std::vector<NodeKind>& value);
};

/// Ranges of iterations: a list, or `101-200,251-300`. Sorted; those that overlap become one.
template <>
struct Codec<std::vector<IterationRange>> {
  static constexpr const char* kType = "list of A-B";
  static std::vector<IterationRange> read(const Item& item, const Rules& rules);
  static std::string write(const std::vector<IterationRange>& value);
};

/// Tasks: a section {name, file, every}, or a list of them.
template <>
struct Codec<std::vector<EvaluationTask>> {
  static constexpr const char* kType = "list of {name, file, every}";
  static std::vector<EvaluationTask> read(const Item& item, const Rules& rules);
  static std::string write(const std::vector<EvaluationTask>& value);
};

template <typename Enum>
requires std::is_enum_v<Enum>
struct Codec<Enum> {
  static constexpr const char* kType = "choice";
  static Enum read(const Item& item, const Rules& rules) {
    return static_cast<Enum>(read_choice(item, rules));
  }
  static std::string write(Enum value) { return std::string(name_of(value)); }
};

}  // namespace trireme::deck
