// The table of flags: the flags of Megatron-LM (first release to Megatron-Core), of its DeepSpeed
// and BigScience forks, and the keys of a ds_config.json. And the parser that finds them in a
// command line or a JSON file.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::convert::flags {

/// The number of values of a flag.
enum class Takes { nothing, one, several, any };
inline constexpr auto kNone = Takes::nothing;
inline constexpr auto kOne = Takes::one;
inline constexpr auto kSeveral = Takes::several;
inline constexpr auto kAny = Takes::any;

/// How a flag is converted.
enum class Fate {
  key,      ///< its value becomes the value of `key`
  rule,     ///< it decides keys together with other flags (recipe.hpp)
  dropped,  ///< Trireme does not need it; `note` says why
  refused,  ///< Trireme cannot do it; `note` says what to do
};

/// One row of the table.
struct Flag {
  std::string_view name;  ///< without dashes, words joined by `-`; the path of a JSON key; "moe-*"
                          ///< for all flags that begin with "moe-" and have no row
  Takes takes = Takes::one;
  Fate fate = Fate::dropped;
  std::string_view key;   ///< deck key; for Fate::rule the main one, as documentation
  std::string_view word;  ///< the value that a switch sets, or the unit of a number
  std::string_view note;
};

/// All flags of the command line.
const std::vector<Flag>& command_flags();

/// All keys of a ds_config.json. A row for "optimizer" covers the keys below it.
const std::vector<Flag>& json_keys();

/// The row called `name`, written with `-` or `_`; null if there is none.
const Flag* find_flag(const std::vector<Flag>& table, std::string_view name);

/// "; did you mean '--num-layers'?" with the known name nearest to `name`, or "".
std::string suggestion(const std::vector<Flag>& table, std::string_view name,
                       std::string_view dashes);

// ---------------------------------------------------------------------------- rows

/// A flag with one value, which becomes that of `key`; `unit` is appended if given.
constexpr Flag to_key(std::string_view name, std::string_view key, std::string_view unit = "") {
  return {name, Takes::one, Fate::key, key, unit, ""};
}
/// A switch that sets `key` to `value`.
constexpr Flag turns(std::string_view name, std::string_view key, std::string_view value,
                     std::string_view note = "") {
  return {name, Takes::nothing, Fate::key, key, value, note};
}
/// A flag read by rules; `key` is the main key that they set.
constexpr Flag to_rule(std::string_view name, std::string_view key, Takes takes = Takes::one) {
  return {name, takes, Fate::rule, key, "", ""};
}
/// A flag that sets no key, with the `reason` shown to the user.
constexpr Flag drop(std::string_view name, Takes takes, std::string_view reason) {
  return {name, takes, Fate::dropped, "", "", reason};
}
/// A flag that stops the conversion, with the `way_out` shown to the user.
constexpr Flag refuse(std::string_view name, Takes takes, std::string_view way_out) {
  return {name, takes, Fate::refused, "", "", way_out};
}

/// The parts of the table, in the order of Megatron's own groups.
std::vector<Flag> model_flags();
std::vector<Flag> core_flags();
std::vector<Flag> training_flags();
std::vector<Flag> data_flags();
std::vector<Flag> system_flags();

/// A flag of the command line, or a key of ds_config.json, with its values.
struct Given {
  const Flag* flag = nullptr;
  std::string name;                 ///< as it is written: "--num-layers"
  std::vector<std::string> values;  ///< empty for a switch
  std::string place;                ///< "train.sh:12"

  /// "--num-layers 24".
  std::string text() const;
};

/// A message and its place in the input.
struct Remark {
  std::string place;
  std::string message;
};

/// The flags of a command line or the keys of a JSON file. The last of a repeated flag counts.
class Arguments {
 public:
  void add(Given given);
  /// The flag called `name`; null if it is not given.
  const Given* find(std::string_view name) const;
  bool has(std::string_view name) const { return find(name) != nullptr; }
  /// Records that the flag `name` is present with an invalid value.
  void add_unreadable(std::string_view name) { unreadable_.insert(name); }
  /// Whether the flag is present, with a valid or an invalid value.
  bool mentions(std::string_view name) const { return has(name) || unreadable_.contains(name); }
  /// Every flag once.
  const std::vector<Given>& all() const { return given_; }

 private:
  std::vector<Given> given_;
  std::set<std::string_view> unreadable_;
};

/// The result of parsing.
struct Parsed {
  Arguments arguments;
  std::vector<Remark> errors;  ///< unknown flags, missing and surplus values, unknown variables
  std::vector<Remark> notes;   ///< repeated flags, unknown words
};

/// The flags among `words`, found at `place`. Flags named in `ignored` (without dashes) are skipped
/// with their values.
Parsed parse_flags(const std::vector<std::string>& words, const std::string& place,
                   const std::set<std::string>& ignored);

/// The keys of the DeepSpeed configuration `text` of the file `name`. Throws DataError if it is no
/// JSON object.
Parsed parse_json(const std::string& text, const std::string& name,
                  const std::set<std::string>& ignored);

/// "the script does not say what $NNODES is (give --define NNODES=...)", for a text with marks.
std::string unknown_values(std::string_view text);

}  // namespace trireme::convert::flags
