#include "deck/sweep/section.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

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

// Twelve digits hide what adding and multiplying decimal numbers leaves behind.
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
  for (std::size_t i = 0; i < values.size(); ++i)
    if (std::find(values.begin(), values.begin() + i, values[i]) != values.begin() + i)
      throw BadValue(fmt::format("{} is there twice", values[i].empty() ? "~" : values[i]));
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

}  // namespace trireme::deck
