// The flags that a recipe gives, found in the table.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "convert/flags/table/flag.hpp"

namespace trireme::convert::flags {

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
