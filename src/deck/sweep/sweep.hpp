// The runs that a deck's `sweep` section stands for.
//
// The section holds lists of values by key, keys that are zipped, named cases, and a file with one
// list of settings per line ('--help deck.sweep'). A run is one choice of each: every combination
// runs, the section's last entry changing fastest.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/files.hpp"
#include "deck/value.hpp"

namespace trireme::deck {

/// A key that one run of a sweep sets.
struct SweptValue {
  std::string key;    ///< "model.layers"
  std::string value;  ///< in YAML; "" takes the key back to its default
  std::string where;  ///< "lr.yaml:12:9", or the override that wrote it

  std::string as_override() const { return key + "=" + value; }
};

/// One run: what it sets, and the name of its folder.
struct SweepRun {
  std::string name;
  std::vector<SweptValue> values;
};

/// A sweep section with its overrides.
struct Sweep {
  std::vector<SweepRun> runs;
  std::vector<std::string> keys;  ///< that any run sets, in order
  std::optional<std::int64_t> ranks;
  std::optional<std::int64_t> jobs;
  std::string launcher;  ///< "" for the usual one
  std::string sbatch;
  std::vector<std::string> overrides;  ///< those of the deck, which every run gets
};

/// Whole text of a file; throws IoError.
using FileReader = std::function<std::string(const std::string& path)>;

/// Expands the sweep section of the deck `text`. An override `sweep.KEY=VALUE` replaces what the
/// section says of that key, and `sweep.KEY=` takes it out. `filename` is what errors name. Run
/// names are unique words for a file name: a case's name, then `key=value` of the rest. Throws
/// DeckError with all that is wrong in the section; what is wrong with a value itself shows when
/// the run's deck is parsed.
Sweep expand_sweep(
    std::string_view text, const std::string& filename,
    const std::vector<std::string>& overrides = {},
    const FileReader& read = [](const std::string& path) { return read_regular_file(path); });

// The sweep section as axes: each a list of choices, of which a run takes one. Values and names of
// runs.

/// What a run takes from an axis: settings that go together, and the name of a case.
struct Choice {
  std::string name;
  std::vector<SweptValue> values;
};

/// Something of the section that has several choices.
struct Axis {
  Place place;
  std::vector<Choice> choices;
};

/// Reads the section's items into axes and settings of the sweep itself.
class SectionReader {
 public:
  /// `filename` and `overrides` are what errors name, as Problems has them.
  SectionReader(std::string filename, std::vector<std::string> overrides, const FileReader& read,
                Problems& problems);

  /// Takes the section up: flattens it to the paths of keys.
  void take(const Item& section);
  /// Replaces what the section says of `path`, a key of the deck or of the section, in its place:
  /// runs keep their names. An item that is null takes it out.
  void replace(const std::string& path, const Item& item, const Place& place);

  /// The axes, in order; settings of the sweep itself go into `sweep`.
  std::vector<Axis> read(Sweep& sweep);

 private:
  struct Entry {
    std::string path;
    Place place;
    Item item;
  };

  void flatten(const std::string& path, const Item& mapping, bool of_section,
               std::vector<Entry>& entries);
  bool is_sweepable(const std::string& path, const Place& place);
  std::string where(const Place& place) const;
  void read_own_key(const Entry& entry, Sweep& sweep);
  void add_list(const Entry& entry);
  void add_zip(const Entry& entry, const Item& section);
  void add_cases(const Entry& entry);
  void add_file(const Entry& entry);
  void add_axis(Axis axis);

  std::string filename_;
  std::vector<std::string> overrides_;
  const FileReader& read_;
  Problems& problems_;
  std::vector<Entry> entries_;
  std::vector<Axis> axes_;
  std::vector<std::string> swept_;  // keys, in the order in which they came
};

/// The maximum number of runs of a sweep.
inline constexpr std::size_t kMaxRuns = 10'000;

/// An item as the text after `key=` in an override: YAML on one line, "" for nothing.
std::string override_text(const Item& item);

/// The values of a list, a range `1..8`, or {from, to, step} or {from, to, factor}. Throws
/// BadValue.
std::vector<std::string> list_values(const Item& item);

/// The words of a line, cut at blanks outside of quotes and brackets.
std::vector<std::string> split_words(std::string_view line);

/// FNV-1a: tells names apart that had to be cut.
std::uint32_t checksum(std::string_view text);

/// Whether `name` can be the name of a run's folder: letters, digits and `._+=,-`, not beginning
/// with `.` or `-`.
bool is_run_name(std::string_view name);

/// "tall,peak=1e-4,beta2=0.95": the case's name, if any, then the last name of each key with its
/// value; the whole path where two of `keys` have the same last name. Long names are cut and
/// get a checksum.
std::string run_name(const std::string& case_name, const std::vector<SweptValue>& values,
                     const std::vector<std::string>& keys);

}  // namespace trireme::deck
