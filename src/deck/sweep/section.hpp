// The sweep section as axes: each a list of choices, of which a run takes one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "deck/document.hpp"
#include "deck/problems.hpp"
#include "deck/sweep.hpp"

namespace trireme::deck {

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

}  // namespace trireme::deck
