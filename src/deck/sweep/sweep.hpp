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

}  // namespace trireme::deck
