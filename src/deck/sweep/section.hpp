// The sweep section as axes: each a list of choices, of which a run takes one. Values and names of
// runs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "deck/document.hpp"
#include "deck/sweep/sweep.hpp"

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

/// The most runs that a sweep may have.
inline constexpr std::size_t kMaxRuns = 10'000;

/// An item as what stands behind `key=` in an override: YAML on one line, "" for nothing.
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
