// The table of flags: the flags of Megatron-LM (first release to Megatron-Core), of its DeepSpeed
// and BigScience forks, and the keys of a ds_config.json. And the parser that finds them in a
// command line or a JSON file.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::convert::flags {

/// How many words follow a flag.
enum class Takes { nothing, one, several };

/// What becomes of a flag.
enum class Fate {
  key,      ///< its value is the value of `key`
  rule,     ///< it has a say in one or more keys, together with other flags: rules.hpp
  dropped,  ///< Trireme needs no such flag; `note` says why
  refused,  ///< Trireme cannot do what it asks for; `note` says what to do
};

/// One row of the table.
struct Flag {
  std::string_view name;  ///< without dashes, words joined by `-`; of a JSON key its path
  Takes takes = Takes::one;
  Fate fate = Fate::dropped;
  std::string_view key;   ///< of the deck; for Fate::key, and for readers of Fate::rule
  std::string_view word;  ///< a switch: the value it stands for; else the unit of its number
  std::string_view note;
};

/// All flags of the command line.
const std::vector<Flag>& command_flags();

/// All keys of a ds_config.json. A row for "optimizer" stands for all that is under it.
const std::vector<Flag>& json_keys();

/// The flag called `name`, written with `-` or `_`; null when there is none.
const Flag* find_flag(const std::vector<Flag>& table, std::string_view name);

/// "; did you mean '--num-layers'?" for the known name nearest to `name`, or "".
std::string suggestion(const std::vector<Flag>& table, std::string_view name,
                       std::string_view dashes);

// ---------------------------------------------------------------------------- rows

/// A flag with one value: that of `key`, a number of `unit` where there is one.
constexpr Flag to_key(std::string_view name, std::string_view key, std::string_view unit = "") {
  return {name, Takes::one, Fate::key, key, unit, ""};
}
/// A switch: it gives `key` the `value`.
constexpr Flag turns(std::string_view name, std::string_view key, std::string_view value,
                     std::string_view note = "") {
  return {name, Takes::nothing, Fate::key, key, value, note};
}
/// A flag that rules read; `key` is the one that they set mostly.
constexpr Flag to_rule(std::string_view name, std::string_view key, Takes takes = Takes::one) {
  return {name, takes, Fate::rule, key, "", ""};
}
/// A flag that becomes no key, for a `reason` that the user is told.
constexpr Flag drop(std::string_view name, Takes takes, std::string_view reason) {
  return {name, takes, Fate::dropped, "", "", reason};
}
/// A flag that stops the conversion; the user is told the `way_out`.
constexpr Flag refuse(std::string_view name, Takes takes, std::string_view way_out) {
  return {name, takes, Fate::refused, "", "", way_out};
}

/// The parts of the table, in the order of Megatron's own groups.
std::vector<Flag> model_flags();
std::vector<Flag> training_flags();
std::vector<Flag> data_flags();
std::vector<Flag> system_flags();

/// A flag of the command line, or a key of ds_config.json, with its values.
struct Given {
  const Flag* flag = nullptr;
  std::string name;                 ///< as it is written: "--num-layers"
  std::vector<std::string> values;  ///< none of a switch
  std::string place;                ///< "train.sh:12"

  /// "--num-layers 24".
  std::string text() const;
};

/// A message and where it belongs.
struct Remark {
  std::string place;
  std::string message;
};

/// What a command line or a JSON file gives. Of a repeated flag the last holds.
class Arguments {
 public:
  void add(Given given);
  /// The flag called `name`, null when it is not given.
  const Given* find(std::string_view name) const;
  bool has(std::string_view name) const { return find(name) != nullptr; }
  /// Says that the flag `name` is there, though its value is an error.
  void add_unreadable(std::string_view name) { unreadable_.insert(name); }
  /// Whether the flag is there, with a value or with one that is an error.
  bool mentions(std::string_view name) const { return has(name) || unreadable_.contains(name); }
  /// Every flag once.
  const std::vector<Given>& all() const { return given_; }

 private:
  std::vector<Given> given_;
  std::set<std::string_view> unreadable_;
};

/// What parsing finds beside the arguments.
struct Parsed {
  Arguments arguments;
  std::vector<Remark> errors;  ///< unknown flags, missing and surplus values, unknown variables
  std::vector<Remark> notes;   ///< repeated flags, words that are not known
};

/// The flags among `words`, which stand at `place`. Flags named in `ignored` (without dashes) are
/// left out with their values.
Parsed parse_flags(const std::vector<std::string>& words, const std::string& place,
                   const std::set<std::string>& ignored);

/// The keys of the DeepSpeed configuration `text`, the file `name`. Throws DataError when it is no
/// JSON object.
Parsed parse_json(const std::string& text, const std::string& name,
                  const std::set<std::string>& ignored);

/// "the script does not say what $NNODES is (give --define NNODES=...)", for a text with marks.
std::string unknown_values(std::string_view text);

}  // namespace trireme::convert::flags
