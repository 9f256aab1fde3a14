// Numbers as people write them, and values that consist of parts: datasets and their weights,
// corpora, evaluation tasks, kinds of nodes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "deck/keys/schema.hpp"
#include "deck/value.hpp"

namespace trireme::deck {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// A decimal number taken apart: sign, digits without point, and the power of ten of the last
/// digit.
struct Decimal {
  bool negative = false;
  std::string digits;
  int exponent = 0;
};

// Takes digits from the head of `text`, with single underscores between digits.
std::string take_digits(std::string_view& text) {
  std::string digits;
  while (!text.empty()) {
    const bool separator =
        text[0] == '_' && !digits.empty() && text.size() > 1 && is_digit(text[1]);
    if (!is_digit(text[0]) && !separator) break;
    if (!separator) digits += text[0];
    text.remove_prefix(1);
  }
  return digits;
}

std::optional<Decimal> read_decimal(std::string_view text) {
  Decimal number;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    number.negative = text[0] == '-';
    text.remove_prefix(1);
  }
  const std::string whole = take_digits(text);
  std::string fraction;
  if (!text.empty() && text[0] == '.') {
    text.remove_prefix(1);
    fraction = take_digits(text);
  }
  if (whole.empty() && fraction.empty()) return std::nullopt;
  if (!text.empty() && (text[0] == 'e' || text[0] == 'E')) {
    text.remove_prefix(1);
    if (!text.empty() && text[0] == '+') text.remove_prefix(1);
    const auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), number.exponent);
    // Beyond +-9999 no number fits anyway; the bound keeps the sums below from overflowing.
    if (error == std::errc::invalid_argument) return std::nullopt;
    if (error != std::errc() || std::abs(number.exponent) > 9999) {
      throw BadValue("the exponent is out of range");
    }
    text.remove_prefix(end - text.data());
  }
  if (!text.empty()) return std::nullopt;
  if (whole.size() > 1 && whole[0] == '0') {
    throw BadValue("a number does not start with 0 (YAML would read it as octal)");
  }
  number.digits = whole + fraction;
  number.exponent -= static_cast<int>(fraction.size());
  return number;
}

/// The zeros that a suffix stands for: 3 of `k`; 0 of any other character.
int exponent_of(char suffix) {
  switch (suffix) {
    case 'k':
    case 'K':
      return 3;
    case 'M':
      return 6;
    case 'B':
    case 'G':
      return 9;
    case 'T':
      return 12;
    default:
      return 0;
  }
}

}  // namespace

std::string_view leading_number(std::string_view text) {
  std::size_t end = 0;
  while (end < text.size()) {
    const char c = text[end];
    // An e belongs to the number only with its exponent.
    const std::size_t sign =
        end + 1 < text.size() && (text[end + 1] == '-' || text[end + 1] == '+');
    const bool exponent =
        (c == 'e' || c == 'E') && end + 1 + sign < text.size() && is_digit(text[end + 1 + sign]);
    const bool signs = end == 0 && (c == '-' || c == '+');
    if (!is_digit(c) && c != '.' && c != '_' && !exponent && !signs) break;
    end += exponent ? 1 + sign : 1;
  }
  return text.substr(0, end);
}

std::optional<std::int64_t> parse_clock(std::string_view text) {
  const auto bad = [] { return BadValue("expected hours, minutes and seconds, such as 1:30:00"); };
  if (text.find(':') == std::string_view::npos) return std::nullopt;
  std::vector<std::int64_t> parts;
  for (std::string_view rest = text;;) {
    const std::size_t colon = std::min(rest.find(':'), rest.size());
    const std::string_view part = rest.substr(0, colon);
    const bool two_digits = part.size() == 2 || (parts.empty() && !part.empty());
    if (!two_digits || part.size() > 6 || !std::all_of(part.begin(), part.end(), is_digit))
      throw bad();
    parts.push_back(0);
    std::from_chars(part.data(), part.data() + part.size(), parts.back());
    if (colon == rest.size()) break;
    rest.remove_prefix(colon + 1);
  }
  if (parts.size() != 3 || parts[1] > 59 || parts[2] > 59) throw bad();
  return (parts[0] * 60 + parts[1]) * 60 + parts[2];
}

bool is_decimal(std::string_view text) { return read_decimal(text).has_value(); }

std::int64_t parse_whole(std::string_view text, Suffix suffix) {
  const auto bad = [] { return BadValue("expected a whole number"); };
  const int zeros_of_suffix = text.empty() ? 0 : exponent_of(text.back());
  if (zeros_of_suffix > 0) text.remove_suffix(1);
  std::optional<Decimal> number = read_decimal(text);
  if (!number) {
    const std::string_view head = leading_number(text);
    const std::string_view word = text.substr(head.size());
    const std::size_t letter = word.find_first_not_of(' ');
    if (letter != 0 && letter != std::string_view::npos && read_decimal(head))
      throw BadValue(fmt::format("expected a whole number alone, without '{}'",
                                 printable(word.substr(letter))));
    throw bad();
  }
  if (zeros_of_suffix > 0 && suffix == Suffix::none)
    throw BadValue("expected a whole number written out: a suffix may mean 1000 or 1024");
  number->exponent += zeros_of_suffix;
  std::string digits = number->digits;
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  if (digits.empty()) return 0;
  for (int exponent = number->exponent; exponent < 0; ++exponent) {
    if (digits.empty() || digits.back() != '0') throw bad();
    digits.pop_back();
  }
  constexpr std::size_t kMaxDigits = std::numeric_limits<std::int64_t>::digits10 + 1;
  const std::size_t zeros = std::max(number->exponent, 0);
  std::int64_t value = 0;
  if (digits.size() + zeros <= kMaxDigits) {
    digits.append(zeros, '0');
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error == std::errc()) return number->negative ? -value : value;
  }
  throw BadValue("too large for a 64-bit number");
}

double parse_real(std::string_view text) {
  const bool percent = text.ends_with('%');
  if (percent) text.remove_suffix(1);
  std::optional<Decimal> number = read_decimal(text);
  if (!number && std::ranges::count(text, ',') == 1) {
    std::string point(text);
    std::ranges::replace(point, ',', '.');
    if (read_decimal(point))
      throw BadValue(fmt::format("expected a number, with a decimal point: {}", point));
  }
  if (!number) throw BadValue("expected a number");
  if (percent) number->exponent -= 2;
  const std::string plain = fmt::format("{}e{}", number->digits, number->exponent);
  double value = 0;
  const auto [end, error] = std::from_chars(plain.data(), plain.data() + plain.size(), value);
  if (error != std::errc()) throw BadValue("out of the range of floating-point numbers");
  return number->negative ? -value : value;
}

std::string divisor_list(std::int64_t number, std::int64_t near, std::int64_t factor,
                         std::int64_t least) {
  return divisor_list(number, near, [=](std::int64_t divisor) {
    return divisor % factor == 0 && divisor >= least;
  });
}

std::string divisor_list(std::int64_t number, std::int64_t near,
                         const std::function<bool(std::int64_t)>& fits) {
  constexpr std::size_t kMax = 6;
  std::vector<std::int64_t> divisors;
  for (std::int64_t low = 1; low * low <= number; ++low) {
    if (number % low != 0) continue;
    divisors.push_back(low);
    if (low * low != number) divisors.push_back(number / low);
  }
  const auto distance = [near](std::int64_t divisor) {
    return std::abs(std::log(static_cast<double>(divisor) / static_cast<double>(near)));
  };
  std::erase_if(divisors, [&](std::int64_t divisor) { return !fits(divisor); });
  std::sort(divisors.begin(), divisors.end());
  std::stable_sort(divisors.begin(), divisors.end(),
                   [&](std::int64_t a, std::int64_t b) { return distance(a) < distance(b); });
  divisors.resize(std::min(divisors.size(), kMax));
  std::sort(divisors.begin(), divisors.end());
  std::vector<std::string> words;
  for (const std::int64_t divisor : divisors) words.push_back(fmt::format("{}", divisor));
  return alternatives(words);
}

// ---- values that consist of parts

namespace {

/// Digits alone; empty for anything else.
std::optional<std::int64_t> plain_number(std::string_view text) {
  constexpr std::int64_t kMax = 1 << 20;
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  const bool good = error == std::errc() && stop == end && value >= 0 && value <= kMax;
  return good ? std::optional(value) : std::nullopt;
}

/// "2*a10:4", "a10:4" or "4".
NodeKind node_kind_of(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  const std::string whole(text);
  const auto bad = [&] {
    return BadValue(fmt::format(
        "'{}' is no kind of nodes; write GPUs per node (8), their type (a10:4), and with several "
        "kinds the number of nodes (2*a10:4)",
        printable(whole)));
  };
  NodeKind kind;
  if (const std::size_t star = text.find('*'); star != std::string_view::npos) {
    kind.nodes = plain_number(text.substr(0, star));
    if (!kind.nodes || *kind.nodes == 0) throw bad();
    text.remove_prefix(star + 1);
  }
  if (const std::size_t colon = text.find(':'); colon != std::string_view::npos) {
    const auto is_plain = [](unsigned char c) {
      return std::isalnum(c) || c == '_' || c == '-' || c == '.';
    };
    kind.gpu = text.substr(0, colon);
    if (kind.gpu.empty() || !std::all_of(kind.gpu.begin(), kind.gpu.end(), is_plain)) throw bad();
    text.remove_prefix(colon + 1);
  }
  const auto gpus = plain_number(text);
  if (!gpus || (*gpus == 0 && !kind.gpu.empty())) throw bad();
  kind.gpus = *gpus;
  return kind;
}

// A number where a list has both numbers and texts.
bool is_number(const Item& item) {
  if (item.kind != Item::Kind::scalar || item.quoted) return false;
  try {
    return is_decimal(item.text);
  } catch (const BadValue&) {
    return true;  // meant as one
  }
}

// A text between texts and numbers, inside brackets.
std::string write_element(const std::string& text) {
  const Item plain{.kind = Item::Kind::scalar, .text = text};
  return is_number(plain) ? '"' + text + '"' : write_text(text);
}

}  // namespace

Datasets Codec<Datasets>::read(const Item& item, const Rules&) {
  if (item.kind == Item::Kind::mapping)
    throw BadValue(
        "expected a dataset, or datasets with their weights, [0.3, a, 0.7, b], found a section");
  if (item.kind != Item::Kind::list) {
    const std::string text = read_text(item);
    if (const std::string_view weight = leading_number(text);
        !item.quoted && !weight.empty() && text.substr(weight.size()).starts_with(' ')) {
      std::istringstream words(text);
      std::vector<std::string> elements;
      for (std::string word; words >> word;) elements.push_back(word);
      throw BadValue(fmt::format("a blend is a list: [{}]", fmt::join(elements, ", ")));
    }
    return {.names = {text}};
  }
  const auto numbers = std::count_if(item.items.begin(), item.items.end(), is_number);
  const std::size_t step = numbers > 0 ? 2 : 1;
  const auto bad = [] {
    return BadValue(
        "expected datasets, [a, b, ...], or each with its weight, [0.3, a, 0.7, b, ...] (quote the "
        "name of a dataset that is a number)");
  };
  if (item.items.empty() || item.items.size() % step != 0 ||
      (step == 2 && 2 * numbers != std::ssize(item.items)))
    throw bad();
  Datasets datasets;
  for (std::size_t i = 0; i < item.items.size(); i += step) {
    if (step == 2 && (!is_number(item.items[i]) || is_number(item.items[i + 1]))) throw bad();
    datasets.names.push_back(read_text(item.items[i + step - 1]));
    if (step == 1) continue;
    datasets.weights.push_back(read_real(item.items[i]));
    if (datasets.weights.back() <= 0)
      throw BadValue(fmt::format("the weight {} of '{}' must be above 0", item.items[i].text,
                                 datasets.names.back()));
  }
  return datasets;
}

std::string Codec<Datasets>::write(const Datasets& value) {
  if (value.names.size() == 1 && value.weights.empty()) return write_text(value.names.front());
  std::vector<std::string> elements;
  for (std::size_t i = 0; i < value.names.size(); ++i) {
    if (!value.weights.empty()) elements.push_back(fmt::format("{}", value.weights[i]));
    elements.push_back(write_element(value.names[i]));
  }
  return fmt::format("[{}]", fmt::join(elements, ", "));
}

Corpora Codec<Corpora>::read(const Item& item, const Rules&) {
  if (item.kind != Item::Kind::mapping)
    throw BadValue(
        fmt::format("expected names of datasets, {{name: prefix}}, found {}", found(item)));
  Corpora corpora;
  for (std::size_t i = 0; i < item.keys.size(); ++i) {
    const std::string name = read_text(item.keys[i]);
    if (!corpora.prefixes.try_emplace(name, read_text(item.items[i])).second)
      throw BadValue(fmt::format("repeated name '{}'", printable(name)));
  }
  return corpora;
}

std::string Codec<Corpora>::write(const Corpora& value) {
  std::vector<std::string> entries;
  for (const auto& [name, prefix] : value.prefixes)
    entries.push_back(write_element(name) + ": " + write_element(prefix));
  return fmt::format("{{{}}}", fmt::join(entries, ", "));
}

std::vector<EvaluationTask> Codec<std::vector<EvaluationTask>>::read(const Item& item,
                                                                     const Rules& rules) {
  const auto read_task = [&](const Item& task) {
    if (task.kind != Item::Kind::mapping)
      throw BadValue(fmt::format(
          "expected a task, {{name: lambada, file: FILE, every: 1000}}, found {}", found(task)));
    EvaluationTask read;
    for (std::size_t i = 0; i < task.keys.size(); ++i) {
      const std::string key = read_text(task.keys[i]);
      if (key == "name") {
        // The words as those of an enumeration: misspelt ones get a suggestion.
        read.name = rules.list[read_choice(task.items[i], rules)];
      } else if (key == "file") {
        read.file = read_text(task.items[i]);
      } else if (key == "every") {
        read.every = read_length(task.items[i], rules);
        if (read.every->value < 1)
          throw BadValue(fmt::format("`every` = {} of a task must be at least 1",
                                     printable(task.items[i].text)));
      } else {
        throw BadValue(fmt::format("unknown key '{}' of a task, which has name, file and every",
                                   printable(key)));
      }
    }
    if (read.name.empty() || read.file.empty())
      throw BadValue("a task needs a name and a file: {name: lambada, file: FILE, every: 1000}");
    return read;
  };
  std::vector<EvaluationTask> tasks;
  if (item.kind == Item::Kind::list)
    for (const Item& task : item.items) tasks.push_back(read_task(task));
  else
    tasks.push_back(read_task(item));
  return tasks;
}

std::string Codec<std::vector<EvaluationTask>>::write(const std::vector<EvaluationTask>& value) {
  std::vector<std::string> tasks;
  for (const EvaluationTask& task : value)
    tasks.push_back(fmt::format("{{name: {}, file: {}{}}}", task.name, write_element(task.file),
                                task.every ? ", every: " + write_length(*task.every) : ""));
  return tasks.empty() ? "" : fmt::format("[{}]", fmt::join(tasks, ", "));
}

std::vector<NodeKind> Codec<std::vector<NodeKind>>::read(const Item& item, const Rules&) {
  std::vector<NodeKind> kinds;
  if (item.kind == Item::Kind::list) {
    for (const Item& element : item.items) kinds.push_back(node_kind_of(read_text(element)));
  } else {
    std::istringstream words(read_text(item));
    for (std::string word; std::getline(words, word, ',');) kinds.push_back(node_kind_of(word));
  }
  if (kinds.empty()) throw BadValue("expected kinds of nodes, such as a10:4");
  if (kinds.size() > 1)
    for (const NodeKind& kind : kinds)
      if (!kind.nodes || kind.gpus == 0)
        throw BadValue("several kinds of nodes each need their number of nodes and GPUs (2*a10:4)");
  return kinds;
}

std::string Codec<std::vector<NodeKind>>::write(const std::vector<NodeKind>& value) {
  std::vector<std::string> words;
  for (const NodeKind& kind : value)
    words.push_back(fmt::format("{}{}{}", kind.nodes ? fmt::format("{}*", *kind.nodes) : "",
                                kind.gpu.empty() ? "" : kind.gpu + ":", kind.gpus));
  return fmt::format("{}", fmt::join(words, ","));
}

}  // namespace trireme::deck
