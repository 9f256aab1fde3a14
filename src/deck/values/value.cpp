#include "deck/value.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <utility>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "deck/keys/schema.hpp"

namespace trireme::deck {
namespace {

std::string_view scalar_text(const Item& item, std::string_view expected) {
  if (item.kind != Item::Kind::scalar) {
    throw BadValue(fmt::format("expected {}, found {}", expected, found(item)));
  }
  return item.text;
}

// A number or flag in quotes is a text to YAML.
std::string_view plain_text(const Item& item, std::string_view expected) {
  const std::string_view text = scalar_text(item, expected);
  if (item.quoted) throw BadValue(fmt::format("expected {}; take away the quotes", expected));
  return text;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

// A list item, or the parts of a scalar such as `1-2-3`.
template <typename Read>
auto read_list(const Item& item, char separator, std::string_view expected, Read read) {
  std::vector<decltype(read(std::string_view()))> values;
  if (item.kind == Item::Kind::list) {
    for (const Item& element : item.items) values.push_back(read(plain_text(element, expected)));
    return values;
  }
  std::string_view rest = scalar_text(item, expected);
  while (true) {
    const std::size_t end = std::min(rest.find(separator), rest.size());
    values.push_back(read(trimmed(rest.substr(0, end))));
    if (end == rest.size()) return values;
    rest.remove_prefix(end + 1);
  }
}

// Unit words, singular and plural, and their usual abbreviations. A fraction has no unit.
std::optional<Unit> unit_of(std::string_view word) {
  static constexpr std::pair<std::string_view, Unit> kShort[] = {
      {"it", Unit::iterations},   {"iter", Unit::iterations},  {"iters", Unit::iterations},
      {"step", Unit::iterations}, {"steps", Unit::iterations}, {"s", Unit::seconds},
      {"sec", Unit::seconds},     {"secs", Unit::seconds},     {"min", Unit::minutes},
      {"mins", Unit::minutes},    {"h", Unit::hours},          {"hr", Unit::hours},
      {"hrs", Unit::hours}};
  for (const auto& [name, unit] : kShort)
    if (word == name) return unit;
  for (const Unit unit :
       {Unit::iterations, Unit::samples, Unit::seconds, Unit::minutes, Unit::hours}) {
    const std::string_view plural = name_of(unit);
    if (word == plural || word == plural.substr(0, plural.size() - 1)) return unit;
  }
  return std::nullopt;
}

// "101-200"
IterationRange range_of(std::string_view text) {
  const std::size_t dash = text.find('-', 1);
  if (dash == std::string_view::npos)
    throw BadValue("expected a first and a last iteration, such as 101-200");
  IterationRange range{};
  try {
    range = {parse_whole(trimmed(text.substr(0, dash))),
             parse_whole(trimmed(text.substr(dash + 1)))};
  } catch (const BadValue&) {
    throw BadValue(fmt::format("'{}' is no range of iterations, such as 101-200", printable(text)));
  }
  if (range.first > range.last)
    throw BadValue(fmt::format("{} ends before it begins (try {}-{})", write_range(range),
                               range.last, range.first));
  return range;
}

/// Times of several units, or of one that no Length has: `1h30m`, `1d20h`, `2 days`; in seconds.
std::optional<double> parse_times(std::string_view text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"d", 86400}, {"day", 86400}, {"days", 86400}, {"m", 60}};
  double seconds = 0;
  while (!text.empty()) {
    const std::string_view digits = leading_number(text);
    if (!is_decimal(digits) || digits.starts_with('-') || digits.starts_with('+'))
      return std::nullopt;
    text = trimmed(text.substr(digits.size()));
    const std::size_t letters =
        std::ranges::find_if_not(text, [](unsigned char c) { return std::isalpha(c); }) -
        text.begin();
    const std::string_view word = text.substr(0, letters);
    const auto* found =
        std::ranges::find(kUnits, word, &std::pair<std::string_view, double>::first);
    const std::optional<Unit> unit = unit_of(word);
    if (found != std::end(kUnits))
      seconds += parse_real(digits) * found->second;
    else if (unit == Unit::seconds || unit == Unit::minutes || unit == Unit::hours)
      seconds += in_seconds({parse_real(digits), *unit});
    else
      return std::nullopt;
    text = trimmed(text.substr(letters));
  }
  return seconds;
}

// 114 years: clocks count nanoseconds in 64 bits, which overflow after 292.
Length time_in(const Range& range, double value, Unit unit) {
  constexpr double kMaxHours = 1e6;
  const Length time{value, unit};
  require_in(range, value);
  if (in_seconds(time) > 3600 * kMaxHours)
    throw BadValue(fmt::format("must be at most {} hours", kMaxHours));
  return time;
}

bool is_count(Unit unit) { return unit == Unit::iterations || unit == Unit::samples; }

bool allows(const Rules& rules, Unit unit) {
  return std::find(rules.units.begin(), rules.units.end(), unit) != rules.units.end();
}

// The number of a length, with the suffix of 10k, and its unit.
std::pair<std::string_view, std::string_view> split_length(std::string_view text) {
  std::size_t end = leading_number(text).size();
  const bool suffixed = end < text.size() && (end + 1 == text.size() || text[end + 1] == ' ') &&
                        std::string_view("kKMBGT").find(text[end]) != std::string_view::npos;
  end += suffixed;
  return {text.substr(0, end), trimmed(text.substr(end))};
}

// "expected a number and its unit (iterations, samples)"
std::string expected_length(const Rules& rules) {
  std::vector<std::string_view> words;
  for (const Unit unit : rules.units) {
    if (unit != Unit::fraction) words.push_back(name_of(unit));
  }
  return fmt::format("expected a number and its unit ({}{})", fmt::join(words, ", "),
                     allows(rules, Unit::fraction) ? ", or a fraction below 1" : "");
}

}  // namespace

bool Range::contains(double value) const {
  return (low_open ? value > low : value >= low) && (high_open ? value < high : value <= high);
}

std::string Range::text() const {
  const bool below = std::isfinite(high);
  if (!std::isfinite(low)) return below ? fmt::format("at most {}", high) : "";
  if (!below) return fmt::format("{} {}", low_open ? "above" : "at least", low);
  return fmt::format("from {}{} to {}{}", low_open ? "above " : "", low, high_open ? "below " : "",
                     high);
}

void require_in(const Range& range, double value) {
  if (!range.contains(value)) throw BadValue(fmt::format("must be {}", range.text()));
}

std::int64_t read_whole(const Item& item, bool counts) {
  return parse_whole(plain_text(item, "a whole number"), counts ? Suffix::allowed : Suffix::none);
}

double read_real(const Item& item) { return parse_real(plain_text(item, "a number")); }

std::string read_text(const Item& item) {
  const std::string_view text = scalar_text(item, "text");
  if (text.empty()) throw BadValue("must not be empty");
  if (!is_plain_line(text)) throw BadValue("must be one line without control characters");
  return std::string(text);
}

Length read_length(const Item& item, const Rules& rules) {
  const std::string expected = expected_length(rules);
  const std::string_view text = trimmed(scalar_text(item, "a number with a unit"));
  if (const auto seconds = allows(rules, Unit::seconds) ? parse_clock(text) : std::nullopt)
    return time_in(rules.range, static_cast<double>(*seconds), Unit::seconds);
  const auto [digits, word] = split_length(text);
  if (allows(rules, Unit::seconds) && !word.empty() && !unit_of(word))
    if (const auto seconds = parse_times(text))
      return time_in(rules.range, *seconds, Unit::seconds);
  if (!is_decimal(leading_number(digits))) throw BadValue(expected);
  const bool suffixed = !is_decimal(digits);
  const double number = suffixed      ? static_cast<double>(parse_whole(digits, Suffix::allowed))
                        : word == "%" ? parse_real(std::string(digits) + "%")
                                      : parse_real(digits);
  const bool below_one = allows(rules, Unit::fraction) && number > 0 && number < 1;
  Unit unit = (word.empty() && !below_one) ? rules.bare : Unit::fraction;
  if (!word.empty() && word != "%") {
    const std::optional<Unit> named = unit_of(word);
    if (!named) throw BadValue(expected);
    unit = *named;
  }
  if (!allows(rules, unit) || (unit == Unit::fraction && !below_one)) throw BadValue(expected);
  if (!is_count(unit) && unit != Unit::fraction) return time_in(rules.range, number, unit);
  require_in(rules.range, number);
  if (unit == Unit::fraction) return {number, unit};
  // A count is a whole number; double holds it exactly up to 2^53.
  return {static_cast<double>(parse_whole(digits, Suffix::allowed)), unit};
}

double read_time_option(const std::string& option, const std::string& text) {
  if (text.find(':') != std::string::npos) return parse_duration(text);
  const Item item{.kind = Item::Kind::scalar, .text = text};
  try {
    return in_seconds(read_length(item, {.range = {.low = 0, .low_open = true},
                                         .units = {Unit::seconds, Unit::minutes, Unit::hours}}));
  } catch (const BadValue&) {
    throw UsageError("{} {}: expected a time, such as 90min, 1.5 hours or 1:30:00", option, text);
  }
}

std::size_t read_choice(const Item& item, const Rules& rules) {
  const std::string_view text = scalar_text(item, "one word");
  const auto match = std::find(rules.list.begin(), rules.list.end(), text);
  if (match != rules.list.end()) return match - rules.list.begin();
  std::vector<std::string_view> allowed(rules.built.begin(), rules.built.end());
  if (allowed.empty()) allowed = rules.list;
  std::string_view meant = synonymous_value(text, allowed);
  if (meant.empty()) meant = nearest(text, allowed);
  std::string hint = meant.empty() ? "" : fmt::format(" — did you mean '{}'?", meant);
  if (hint.empty())
    for (const Key& key : keys())
      if (std::find(key.rules.list.begin(), key.rules.list.end(), text) != key.rules.list.end())
        hint = fmt::format(" ('{}' is a value of {})", text, key.path);
  throw BadValue(fmt::format("allowed {} {}{}", allowed.size() == 1 ? "is" : "are",
                             fmt::join(allowed, ", "), hint));
}

std::string write_text(const std::string& text) {
  static constexpr std::string_view kSafe =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./+-";
  static constexpr std::array<std::string_view, 3> kNulls = {"null", "Null", "NULL"};
  const bool safe = text.find_first_not_of(kSafe) == std::string::npos && text[0] != '-' &&
                    std::find(kNulls.begin(), kNulls.end(), text) == kNulls.end();
  if (safe) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    const bool control = static_cast<unsigned char>(c) < ' ' || c == 0x7F;
    if (control)  // YAML would read a newline as a space
      quoted += fmt::format("\\x{:02x}", c);
    else
      quoted += c;
  }
  return quoted + "\"";
}

std::string text_override(const std::string& key, const std::string& text) {
  Problems problems("", {});
  const Item item = read_yaml(text, /*source=*/0, problems);
  const bool same = problems.empty() && item.kind == Item::Kind::scalar && item.text == text;
  return key + "=" + (same ? text : write_text(text));
}

std::string write_length(const Length& length) {
  if (length.unit == Unit::fraction) return fmt::format("{}", length.value);
  std::string_view word = name_of(length.unit);
  if (length.value == 1) word.remove_suffix(1);
  if (is_count(length.unit)) {
    return fmt::format("{} {}", static_cast<std::int64_t>(length.value), word);
  }
  return fmt::format("{} {}", length.value, word);
}

std::string write_range(const IterationRange& range) {
  return fmt::format("{}-{}", range.first, range.last);
}

std::int64_t Codec<std::int64_t>::read(const Item& item, const Rules& rules) {
  const std::int64_t value = read_whole(item, rules.counts);
  require_in(rules.range, static_cast<double>(value));
  return value;
}

double Codec<double>::read(const Item& item, const Rules& rules) {
  const double value = read_real(item);
  require_in(rules.range, value);
  return value;
}

bool Codec<bool>::read(const Item& item, const Rules&) {
  const std::string_view text = plain_text(item, "true or false");
  if (text == "true" || text == "false") return text == "true";
  std::string word(text);
  std::ranges::transform(word, word.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const auto& [meant, words] :
       {std::pair("true", std::array{"true", "yes", "on", "1", "y"}),
        std::pair("false", std::array{"false", "no", "off", "0", "n"})})
    if (std::ranges::find(words, word) != words.end())
      throw BadValue(fmt::format("expected true or false — did you mean '{}'?", meant));
  throw BadValue("expected true or false");
}

std::vector<std::int64_t> Codec<std::vector<std::int64_t>>::read(const Item& item,
                                                                 const Rules& rules) {
  auto values = read_list(item, '-', "whole numbers",
                          [](std::string_view text) { return parse_whole(text); });
  for (const std::int64_t value : values) require_in(rules.range, static_cast<double>(value));
  return values;
}

std::string Codec<std::vector<std::int64_t>>::write(const std::vector<std::int64_t>& value) {
  return fmt::format("{}", fmt::join(value, "-"));
}

std::vector<double> Codec<std::vector<double>>::read(const Item& item, const Rules& rules) {
  auto values = read_list(item, ',', "numbers", parse_real);
  for (const double value : values) require_in(rules.range, value);
  return values;
}

std::string Codec<std::vector<double>>::write(const std::vector<double>& value) {
  return fmt::format("{}", fmt::join(value, ","));
}

std::vector<IterationRange> Codec<std::vector<IterationRange>>::read(const Item& item,
                                                                     const Rules& rules) {
  auto ranges = read_list(item, ',', "ranges of iterations", range_of);
  std::sort(ranges.begin(), ranges.end(),
            [](const IterationRange& a, const IterationRange& b) { return a.first < b.first; });
  std::vector<IterationRange> merged;
  for (const IterationRange& range : ranges) {
    require_in(rules.range, static_cast<double>(range.first));
    require_in(rules.range, static_cast<double>(range.last));
    if (!merged.empty() && range.first <= merged.back().last)
      merged.back().last = std::max(merged.back().last, range.last);
    else
      merged.push_back(range);
  }
  return merged;
}

std::string Codec<std::vector<IterationRange>>::write(const std::vector<IterationRange>& value) {
  std::vector<std::string> words;
  for (const IterationRange& range : value) words.push_back(write_range(range));
  return fmt::format("{}", fmt::join(words, ","));
}

}  // namespace trireme::deck
