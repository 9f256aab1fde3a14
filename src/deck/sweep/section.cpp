#include "deck/sweep/sweep.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "deck/keys/schema.hpp"
#include "deck/value.hpp"

namespace trireme::deck {
namespace {

constexpr std::array<std::string_view, 7> kOwnKeys = {"zip",  "cases",    "file",  "ranks",
                                                      "jobs", "launcher", "sbatch"};
constexpr double kMaxJobs = 10'000;
constexpr double kMaxRanksOfRun = 1 << 20;

bool contains(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool is_own_key(std::string_view path) {
  return std::find(kOwnKeys.begin(), kOwnKeys.end(), path) != kOwnKeys.end();
}

}  // namespace

SectionReader::SectionReader(std::string filename, std::vector<std::string> overrides,
                             const FileReader& read, Problems& problems)
    : filename_(std::move(filename)),
      overrides_(std::move(overrides)),
      read_(read),
      problems_(problems) {}

void SectionReader::take(const Item& section) {
  if (section.kind == Item::Kind::mapping) {
    flatten("", section, /*of_section=*/true, entries_);
  } else if (section.kind != Item::Kind::null && section.kind != Item::Kind::refused) {
    problems_.add(section.place, fmt::format("'sweep' is a section of KEY: [a, b, ...]; found {}",
                                             found(section)));
  }
}

void SectionReader::replace(const std::string& path, const Item& item, const Place& place) {
  const auto is_replaced = [&](const Entry& entry) {
    return entry.path == path || entry.path.starts_with(path + ".");
  };
  const auto first = std::find_if(entries_.begin(), entries_.end(), is_replaced);
  const auto at = first - entries_.begin();
  std::erase_if(entries_, is_replaced);
  if (item.kind == Item::Kind::null) return;
  if (is_own_key(path) || is_sweepable(path, place))
    entries_.insert(entries_.begin() + at, Entry{path, place, item});
}

// ---- Keys ----

// The entries of a mapping whose keys are those of the deck, dotted or in sections; in the section
// itself its own keys as well.
void SectionReader::flatten(const std::string& path, const Item& mapping, bool of_section,
                            std::vector<Entry>& entries) {
  for (std::size_t i = 0; i < mapping.keys.size(); ++i) {
    const Item& key = mapping.keys[i];
    const Item& item = mapping.items[i];
    if (key.kind != Item::Kind::scalar) {
      if (key.kind != Item::Kind::refused)
        problems_.add(key.place, fmt::format("a key must be a word, found {}", found(key)));
      continue;
    }
    if (item.kind == Item::Kind::refused) continue;
    const std::string child = path.empty() ? key.text : path + "." + key.text;
    const bool own = of_section && path.empty() && is_own_key(child);
    if (!own && find_key(child) == nullptr && is_section(child) && child != "sweep" &&
        item.kind == Item::Kind::mapping) {
      flatten(child, item, of_section, entries);
      continue;
    }
    if (!own && !is_sweepable(child, key.place)) continue;
    const auto same = [&](const Entry& entry) { return entry.path == child; };
    if (const auto first = std::find_if(entries.begin(), entries.end(), same);
        first != entries.end()) {
      problems_.add(key.place,
                    fmt::format("repeated key '{}' (first in line {})", child, first->place.line));
      continue;
    }
    entries.push_back({child, key.place, item});
  }
}

// Reports a key that a run cannot set.
bool SectionReader::is_sweepable(const std::string& path, const Place& place) {
  const Key* key = find_key(path);
  const bool named = path == "run.output" || path == "run.name";
  if (key != nullptr && key->has_member() && !named) return true;
  if (named) {
    problems_.add(place,
                  fmt::format("the sweep names its runs, whose folders are inside the deck's "
                              "run.output; leave {} out of it",
                              path));
  } else if (key != nullptr && key->unbuilt) {
    problems_.add(place, fmt::format("'{}' is not built yet; leave it out", path));
  } else if (is_section(path) && path != "sweep") {
    problems_.add(place, fmt::format("'{}' is a section: name one of its keys", path));
  } else {
    std::string meant = suggestion(path);
    if (meant.empty()) meant = suggestion("sweep." + path);
    problems_.add(place, fmt::format("unknown key '{}'{}", printable(path), meant));
  }
  return false;
}

std::string SectionReader::where(const Place& place) const {
  if (place.source > 0) return "--set " + overrides_[place.source - 1];
  return fmt::format("{}:{}:{}", filename_, place.line, place.column);
}

// ---- Axes ----

std::vector<Axis> SectionReader::read(Sweep& sweep) {
  for (const Entry& entry : entries_) {
    if (entry.path == "cases") {
      add_cases(entry);
    } else if (entry.path == "file") {
      add_file(entry);
    } else if (entry.path == "zip" && entry.item.kind == Item::Kind::list) {
      for (const Item& section : entry.item.items) add_zip(entry, section);
    } else if (entry.path == "zip") {
      add_zip(entry, entry.item);
    } else if (is_own_key(entry.path)) {
      read_own_key(entry, sweep);
    } else {
      add_list(entry);
    }
  }
  sweep.keys = swept_;
  return std::move(axes_);
}

/// "sweep.run.seed = 5..1: steps of 1 never lead from 5 to 1"; lists and sections are not repeated.
std::string bad_entry(const std::string& path, const Item& item, const BadValue& error) {
  const bool short_value = item.kind == Item::Kind::scalar || item.kind == Item::Kind::null;
  return fmt::format("sweep.{}{}: {}", path, short_value ? " = " + found(item) : "", error.what());
}

void SectionReader::read_own_key(const Entry& entry, Sweep& sweep) {
  try {
    if (entry.path == "launcher" || entry.path == "sbatch") {
      (entry.path == "launcher" ? sweep.launcher : sweep.sbatch) = read_text(entry.item);
      return;
    }
    const bool is_jobs = entry.path == "jobs";
    const std::int64_t value = read_whole(entry.item);
    require_in({1, is_jobs ? kMaxJobs : kMaxRanksOfRun}, static_cast<double>(value));
    (is_jobs ? sweep.jobs : sweep.ranks) = value;
  } catch (const BadValue& error) {
    problems_.add(entry.place, bad_entry(entry.path, entry.item, error));
  }
}

void SectionReader::add_list(const Entry& entry) {
  Axis axis{entry.place, {}};
  try {
    for (const std::string& value : list_values(entry.item))
      axis.choices.push_back({"", {{entry.path, value, where(entry.place)}}});
  } catch (const BadValue& error) {
    problems_.add(entry.place, bad_entry(entry.path, entry.item, error));
  }
  add_axis(std::move(axis));
}

void SectionReader::add_zip(const Entry& entry, const Item& section) {
  if (section.kind != Item::Kind::mapping) {
    problems_.add(entry.place,
                  fmt::format("sweep.zip: expected a section of KEY: [a, b, ...], or a "
                              "list of such sections; found {}",
                              found(section)));
    return;
  }
  std::vector<Entry> entries;
  flatten("", section, /*of_section=*/false, entries);
  Axis axis{entry.place, {}};
  for (const Entry& each : entries) {
    try {
      const std::vector<std::string> values = list_values(each.item);
      if (&each == &entries.front()) axis.choices.resize(values.size());
      if (values.size() != axis.choices.size())
        throw BadValue(fmt::format("there are {} values, but {} of {}; zipped keys have as many",
                                   values.size(), axis.choices.size(), entries.front().path));
      for (std::size_t i = 0; i < values.size(); ++i)
        axis.choices[i].values.push_back({each.path, values[i], where(each.place)});
    } catch (const BadValue& error) {
      problems_.add(each.place, bad_entry("zip." + each.path, each.item, error));
      return;
    }
  }
  add_axis(std::move(axis));
}

void SectionReader::add_cases(const Entry& entry) {
  if (entry.item.kind != Item::Kind::mapping) {
    problems_.add(
        entry.place,
        fmt::format("sweep.cases: expected a section of NAME: {{KEY: value, ...}}, found {}",
                    found(entry.item)));
    return;
  }
  Axis axis{entry.place, {}};
  for (std::size_t i = 0; i < entry.item.keys.size(); ++i) {
    const Item& name = entry.item.keys[i];
    const Item& settings = entry.item.items[i];
    const auto same = [&](const Choice& choice) { return choice.name == name.text; };
    if (!is_run_name(name.text) || name.text == "sweep") {
      problems_.add(name.place, fmt::format("sweep.cases: '{}' cannot name a folder of a run (use "
                                            "letters, digits and ._+=,-; not 'sweep')",
                                            printable(name.text)));
    } else if (std::any_of(axis.choices.begin(), axis.choices.end(), same)) {
      problems_.add(name.place, fmt::format("sweep.cases: repeated case '{}'", name.text));
    } else if (settings.kind != Item::Kind::mapping && settings.kind != Item::Kind::null) {
      problems_.add(name.place,
                    fmt::format("sweep.cases.{}: expected {{KEY: value, ...}}, found {}", name.text,
                                found(settings)));
    } else {
      std::vector<Entry> entries;
      flatten("", settings, /*of_section=*/false, entries);
      axis.choices.push_back({name.text, {}});
      for (const Entry& each : entries)
        axis.choices.back().values.push_back(
            {each.path, override_text(each.item), where(each.place)});
    }
  }
  add_axis(std::move(axis));
}

void SectionReader::add_file(const Entry& entry) {
  std::string text;
  std::string name;
  try {
    name = read_text(entry.item);
    text = read_(name);
  } catch (const std::runtime_error& error) {  // BadValue, IoError
    problems_.add(entry.place, fmt::format("sweep.file: {}", error.what()));
    return;
  }
  Axis axis{entry.place, {}};
  int number = 0;
  for (std::size_t begin = 0; begin < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::vector<std::string> words =
        split_words(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
    if (words.empty() || words.front().starts_with('#')) continue;
    axis.choices.emplace_back();
    for (const std::string& word : words) {
      const std::size_t equals = word.find('=');
      if (equals == std::string::npos || equals == 0) {
        problems_.add(entry.place, fmt::format("sweep.file: '{}', line {}: '{}' is not KEY=VALUE",
                                               name, number + 1, printable(word)));
      } else if (is_sweepable(word.substr(0, equals), entry.place)) {
        axis.choices.back().values.push_back({word.substr(0, equals), word.substr(equals + 1),
                                              fmt::format("{}:{}", name, number + 1)});
      }
    }
  }
  if (axis.choices.empty())
    problems_.add(entry.place, fmt::format("sweep.file: '{}' holds no settings", name));
  add_axis(std::move(axis));
}

// Every key has one axis: of two, one would be overridden in silence.
void SectionReader::add_axis(Axis axis) {
  std::vector<std::string> keys;
  for (const Choice& choice : axis.choices) {
    for (auto value = choice.values.begin(); value != choice.values.end(); ++value) {
      const auto same = [&](const SweptValue& each) { return each.key == value->key; };
      if (std::any_of(choice.values.begin(), value, same))
        problems_.add(axis.place, fmt::format("{}: '{}' is set twice", value->where, value->key));
      if (!contains(keys, value->key)) keys.push_back(value->key);
    }
  }
  for (const std::string& key : keys) {
    if (contains(swept_, key))
      problems_.add(axis.place, fmt::format("'{}' is set by another part of the sweep, too", key));
    else
      swept_.push_back(key);
  }
  if (!axis.choices.empty()) axes_.push_back(std::move(axis));
}

}  // namespace trireme::deck
