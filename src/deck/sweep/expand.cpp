#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "core/error.hpp"
#include "deck/keys/schema.hpp"
#include "deck/sweep/sweep.hpp"
#include "deck/value.hpp"

namespace trireme::deck {
namespace {

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '\n') {
      result += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + '"';
}

// As it stands inside of brackets, where some characters have a meaning.
std::string inner_text(const Item& item) {
  switch (item.kind) {
    case Item::Kind::scalar: {
      const bool plain = !item.quoted && item.text.find_first_of(",[]{}:#") == std::string::npos;
      return plain ? item.text : quoted(item.text);
    }
    case Item::Kind::list:
    case Item::Kind::mapping: {
      const bool is_list = item.kind == Item::Kind::list;
      std::string text = is_list ? "[" : "{";
      for (std::size_t i = 0; i < item.items.size(); ++i) {
        if (i > 0) text += ", ";
        if (!is_list) text += inner_text(item.keys[i]) + ": ";
        text += inner_text(item.items[i]);
      }
      return text + (is_list ? "]" : "}");
    }
    case Item::Kind::null:
    case Item::Kind::refused:
      break;
  }
  return "~";
}

bool is_whole(double value) { return value == std::floor(value) && std::abs(value) < 1e15; }

// Twelve digits hide the rounding errors of adding and multiplying decimal numbers.
std::string number_text(double value, bool whole) {
  return whole ? fmt::format("{}", static_cast<std::int64_t>(std::llround(value)))
               : fmt::format("{:.12g}", value);
}

// `count(from, to)` steps fit between the ends; `at(i)` is where the i-th leads.
std::vector<std::string> numbers(double steps, bool whole, const auto& at) {
  // An end that is reached but for rounding belongs to the range.
  const double count = std::floor(steps + 1e-9) + 1;
  if (!(count <= static_cast<double>(kMaxRuns)))
    throw BadValue(fmt::format("more than {} values", kMaxRuns));
  std::vector<std::string> values;
  for (int i = 0; i < static_cast<int>(count); ++i) values.push_back(number_text(at(i), whole));
  return values;
}

std::vector<std::string> steps_between(double from, double to, double step) {
  if (step == 0 || (to - from) / step < 0)
    throw BadValue(fmt::format("steps of {} never lead from {} to {}", step, from, to));
  return numbers((to - from) / step, is_whole(from) && is_whole(step),
                 [&](int i) { return from + i * step; });
}

std::vector<std::string> powers_between(double from, double to, double factor) {
  const double steps = std::log(to / from) / std::log(factor);
  if (!(factor > 0) || factor == 1 || !(to / from > 0) || steps < 0)
    throw BadValue(fmt::format("multiplying by {} never leads from {} to {}", factor, from, to));
  return numbers(steps, is_whole(from) && is_whole(factor),
                 [&](int i) { return from * std::pow(factor, i); });
}

std::vector<std::string> range_values(const Item& range) {
  std::optional<double> from, to, step, factor;
  for (std::size_t i = 0; i < range.keys.size(); ++i) {
    const std::string& name = range.keys[i].text;
    auto* member = name == "from"     ? &from
                   : name == "to"     ? &to
                   : name == "step"   ? &step
                   : name == "factor" ? &factor
                                      : nullptr;
    if (!member || *member)
      throw BadValue(
          fmt::format("a range is {{from: A, to: B, step: C}} or {{from: A, to: B, factor: C}}; "
                      "found {} '{}'",
                      member ? "a second" : "the key", printable(name)));
    *member = read_real(range.items[i]);
  }
  if (!from || !to || step.has_value() == factor.has_value())
    throw BadValue("a range needs 'from', 'to' and one of 'step' and 'factor'");
  return step ? steps_between(*from, *to, *step) : powers_between(*from, *to, *factor);
}

// "1..8"; nothing when the text is no such range.
std::optional<std::vector<std::string>> counted_values(const Item& item) {
  const std::size_t dots = item.text.find("..");
  if (item.kind != Item::Kind::scalar || item.quoted || dots == std::string::npos)
    return std::nullopt;
  Item end = item;
  end.text = item.text.substr(0, dots);
  const auto from = static_cast<double>(read_whole(end));
  end.text = item.text.substr(dots + 2);
  return steps_between(from, static_cast<double>(read_whole(end)), 1);
}

/// A number in its shortest form, so that 1e-3 is 0.001; other text as it is.
std::string value_key(const std::string& text) {
  try {
    return fmt::format("{}", parse_whole(text, Suffix::allowed));
  } catch (const BadValue&) {  // no whole number
  }
  try {
    return fmt::format("{}", parse_real(text));
  } catch (const BadValue&) {
    return text;
  }
}

}  // namespace

std::string override_text(const Item& item) {
  if (item.kind == Item::Kind::null || item.kind == Item::Kind::refused) return "";
  return item.kind == Item::Kind::scalar && !item.quoted ? item.text : inner_text(item);
}

std::vector<std::string> list_values(const Item& item) {
  std::vector<std::string> values;
  if (item.kind == Item::Kind::list) {
    for (const Item& each : item.items) values.push_back(override_text(each));
    if (values.empty()) throw BadValue("the list is empty");
  } else if (item.kind == Item::Kind::mapping) {
    values = range_values(item);
  } else if (auto counted = counted_values(item)) {
    values = std::move(*counted);
  } else {
    throw BadValue(
        "expected a list [a, b, ...], a range such as 1..8, or {from: A, to: B, step: C}; what all "
        "runs share belongs in its own section");
  }
  std::map<std::string, std::string> seen;  // by value_key()
  for (const std::string& value : values) {
    const auto [first, is_new] = seen.try_emplace(value_key(value), value);
    if (is_new) continue;
    const std::string also = first->second == value ? "" : fmt::format(" ({})", first->second);
    throw BadValue(fmt::format("{}{} is there twice", value.empty() ? "~" : value, also));
  }
  return values;
}

std::vector<std::string> split_words(std::string_view line) {
  std::vector<std::string> words(1);
  char quote = '\0';
  int depth = 0;
  for (const char c : line) {
    const bool blank = c == ' ' || c == '\t' || c == '\r';
    if (blank && quote == '\0' && depth == 0) {
      if (!words.back().empty()) words.emplace_back();
      continue;
    }
    if (quote != '\0') {
      if (c == quote) quote = '\0';
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '[' || c == '{') {
      ++depth;
    } else if (c == ']' || c == '}') {
      --depth;
    }
    words.back() += c;
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

namespace {

// The item of `sweep:`; nullptr when there is none.
const Item* find_section(const Item& root) {
  for (std::size_t i = 0; i < root.keys.size(); ++i)
    if (root.keys[i].text == "sweep") return &root.items[i];
  return nullptr;
}

// Overrides of the section go to `reader`, those of the deck to `sweep`.
void sort_overrides(const std::vector<std::string>& overrides, SectionReader& reader, Sweep& sweep,
                    Problems& problems) {
  for (std::size_t i = 0; i < overrides.size(); ++i) {
    const std::string& text = overrides[i];
    const int source = static_cast<int>(i) + 1;
    const Place place{source, 0, 0};
    const std::size_t equals = text.find('=');
    const std::string path = text.substr(0, equals);
    if (path == "sweep") {
      problems.add(place, "name what to change, such as sweep.jobs=2");
    } else if (!path.starts_with("sweep.") || equals == std::string::npos) {
      sweep.overrides.push_back(text);
    } else {
      const auto value = read_yaml(std::string_view(text).substr(equals + 1), source, problems);
      reader.replace(path.substr(6), value, place);
    }
  }
}

// An override of the deck that every run would override again says nothing.
void refuse_swept_overrides(const std::vector<std::string>& overrides, const Sweep& sweep,
                            Problems& problems) {
  for (std::size_t i = 0; i < overrides.size(); ++i) {
    const std::string path = overrides[i].substr(0, overrides[i].find('='));
    if (std::find(sweep.keys.begin(), sweep.keys.end(), path) != sweep.keys.end())
      problems.add({static_cast<int>(i) + 1, 0, 0},
                   fmt::format("the sweep sets {} itself; change it there", path));
  }
}

// A run, and those of its values that its name spells out: what a case sets is said by its name.
struct Draft {
  SweepRun run;
  std::vector<SweptValue> spelt;

  void add(const Choice& choice) {
    run.values.insert(run.values.end(), choice.values.begin(), choice.values.end());
    if (choice.name.empty())
      spelt.insert(spelt.end(), choice.values.begin(), choice.values.end());
    else
      run.name = choice.name;
  }
};

// Every combination of one choice of each axis; the last axis changes fastest.
std::vector<SweepRun> combine(const std::vector<Axis>& axes, const std::vector<std::string>& keys) {
  std::vector<Draft> drafts(1);
  for (const Axis& axis : axes) {
    std::vector<Draft> longer;
    for (const Draft& draft : drafts) {
      for (const Choice& choice : axis.choices) {
        longer.push_back(draft);
        longer.back().add(choice);
      }
    }
    drafts = std::move(longer);
  }
  std::vector<SweepRun> runs;
  for (Draft& draft : drafts) {
    draft.run.name = run_name(draft.run.name, draft.spelt, keys);
    runs.push_back(std::move(draft.run));
  }
  return runs;
}

void refuse_equal_names(const std::vector<SweepRun>& runs, Problems& problems) {
  std::map<std::string, int> counts;
  for (const SweepRun& run : runs) ++counts[run.name];
  for (const auto& [name, count] : counts)
    if (count > 1)
      problems.add({}, fmt::format("{} runs of the sweep would be called '{}'; name them by "
                                   "sweep.cases",
                                   count, name));
}

}  // namespace

Sweep expand_sweep(std::string_view text, const std::string& filename,
                   const std::vector<std::string>& overrides, const FileReader& read) {
  std::vector<std::string> shown;
  for (const std::string& each : overrides) shown.push_back(printable(each));
  Problems problems(filename, shown);
  const Item root = read_yaml(text, 0, problems);
  problems.raise_if_any();

  Sweep sweep;
  SectionReader reader(filename, shown, read, problems);
  if (const Item* section = find_section(root)) reader.take(*section);
  sort_overrides(overrides, reader, sweep, problems);
  const std::vector<Axis> axes = reader.read(sweep);
  refuse_swept_overrides(overrides, sweep, problems);
  problems.raise_if_any();

  double count = axes.empty() ? 0 : 1;
  for (const Axis& axis : axes) count *= static_cast<double>(axis.choices.size());
  if (count == 0)
    problems.add({},
                 "the deck has no section 'sweep:' with values to try; 'trireme-sweep --help "
                 "deck.sweep' explains it");
  if (count > static_cast<double>(kMaxRuns))
    problems.add(axes.front().place,
                 fmt::format("the sweep has {:.0f} runs (at most {})", count, kMaxRuns));
  problems.raise_if_any();
  sweep.runs = combine(axes, sweep.keys);
  refuse_equal_names(sweep.runs, problems);
  problems.raise_if_any();
  return sweep;
}

namespace {

// File systems allow 255 bytes; the sweep's own files add an ending.
constexpr std::size_t kLongestName = 120;

bool is_plain(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// Drops brackets, quotes and blanks; what else is no part of a name becomes '-'.
std::string value_name(const std::string& value) {
  if (value.empty()) return "default";
  std::string name;
  for (const char c : value) {
    if (std::string_view("[]{}\"' ").find(c) != std::string_view::npos) continue;
    name += is_plain(c) || c == '.' || c == '+' ? c : '-';
  }
  return name;
}

}  // namespace

std::uint32_t checksum(std::string_view text) {
  std::uint32_t hash = 2166136261u;
  for (const char c : text) hash = (hash ^ static_cast<std::uint8_t>(c)) * 16777619u;
  return hash;
}

bool is_run_name(std::string_view name) {
  const auto allowed = [](char c) {
    return is_plain(c) || std::string_view("._+=,-").find(c) != std::string_view::npos;
  };
  return !name.empty() && name.size() <= kLongestName && name[0] != '.' && name[0] != '-' &&
         std::all_of(name.begin(), name.end(), allowed);
}

std::string run_name(const std::string& case_name, const std::vector<SweptValue>& values,
                     const std::vector<std::string>& keys) {
  std::string name = case_name;
  for (const SweptValue& each : values) {
    const auto alike = std::count_if(keys.begin(), keys.end(), [&](const std::string& key) {
      return last_name(key) == last_name(each.key);
    });
    name += fmt::format("{}{}={}", name.empty() ? "" : ",",
                        alike > 1 ? std::string_view(each.key) : last_name(each.key),
                        value_name(each.value));
  }
  if (name.size() <= kLongestName) return name;
  return fmt::format("{}+{:08x}", name.substr(0, kLongestName - 9), checksum(name));
}

}  // namespace trireme::deck
