// Values that consist of parts: datasets and their weights, corpora, evaluation tasks, kinds of
// nodes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <sstream>
#include <system_error>

#include "deck/value.hpp"

namespace trireme::deck {
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
