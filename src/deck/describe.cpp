#include "deck/load.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <numeric>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "deck/keys/schema.hpp"
#include "deck/value.hpp"

namespace trireme::deck {
namespace {

constexpr const char* kNotes = R"(
A length is a number with its unit, such as 2000 iterations or 10k samples; a bare number counts
what 'train' counts; 5% is a fraction. Times are 90 minutes, 20s or 1:30:00. Whole numbers may be
written 1.5e9 or 1_000. On the command line, key=value sets a key and key= restores its default; of
several values the last one counts. '--help deck.section.key' explains a key; '--help WORD' finds
keys by any word, also by the names of Megatron-LM, DeepSpeed and PyTorch.
)";

std::vector<std::string_view> split_path(std::string_view path) {
  std::vector<std::string_view> names;
  while (true) {
    const std::size_t dot = std::min(path.find('.'), path.size());
    names.push_back(path.substr(0, dot));
    if (dot == path.size()) return names;
    path.remove_prefix(dot + 1);
  }
}

// Whether leaving the key out would give the same value.
bool is_default(const Key& key, const Deck& deck) {
  if (!key.fallback.empty()) return key.write(deck) == key.write(fixed_defaults());
  if (!key.derive) return false;
  Deck derived = deck;
  key.derive(derived);
  return key.write(deck) == key.write(derived);
}

std::string default_text(const Key& key) {
  if (key.required) return "required";
  if (!key.fallback.empty()) return key.fallback;
  return key.fallback_words.empty() ? "not set" : key.fallback_words;
}

std::string restart_text(RestartRule rule) {
  switch (rule) {
    case RestartRule::free:
      return "may change it";
    case RestartRule::warn:
      return "may change it, with a warning";
    case RestartRule::immutable:
      break;
  }
  return "must not change it";
}

// "cosine, linear, constant; not built yet: exponential"
std::string allowed_text(const Key& key) {
  if (key.rules.list.empty()) return "";
  std::vector<std::string> ready;
  std::vector<std::string> later;
  for (const std::string_view word : key.rules.list) {
    const bool built =
        key.built.empty() || std::find(key.built.begin(), key.built.end(), word) != key.built.end();
    (built ? ready : later).emplace_back(word);
  }
  return fmt::format("{}{}{}", fmt::join(ready, ", "),
                     later.empty() ? "" : "; not built yet: ", fmt::join(later, ", "));
}

// What is built of a key whose values are not words.
std::string built_text(const Key& key) {
  if (key.unbuilt) return "not built yet" + (key.reason.empty() ? "" : ": " + key.reason);
  if (key.built.empty() || !key.rules.list.empty()) return "";
  return fmt::format("only {} so far", alternatives(key.built));
}

std::string units_text(const Key& key) {
  std::vector<std::string_view> words;
  for (const Unit unit : key.rules.units) words.push_back(name_of(unit));
  return key.unit.empty() ? fmt::format("{}", fmt::join(words, ", ")) : key.unit;
}

// `words` after `head` in lines of at most 100 columns; all but the first are indented by `indent`.
std::string hanging(const std::string& head, std::string_view words, std::size_t indent) {
  constexpr std::size_t kColumns = 100;
  std::string text = fmt::format("{:<{}}", head, indent - 1);
  std::size_t column = text.size();
  while (!words.empty()) {
    const std::size_t end = std::min(words.find(' '), words.size());
    if (column + 1 + end > kColumns) {
      text += fmt::format("\n{:{}}", "", indent - 1);
      column = indent - 1;
    }
    text += fmt::format(" {}", words.substr(0, end));
    column += 1 + end;
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return text + "\n";
}

std::string help_for_key(const Key& key) {
  std::string text = hanging(key.path + ":", key.help, 2);
  const auto line = [&](std::string_view label, const std::string& value) {
    if (!value.empty()) text += hanging(fmt::format("  {}", label), value, 11);
  };
  line("type", key.type);
  line("default", default_text(key));
  line("range", key.rules.range.text());
  line("allowed", allowed_text(key));
  line("unit", units_text(key));
  line("built", built_text(key));
  if (key.has_member()) line("restart", restart_text(key.restart));
  return text;
}

bool in_topic(const Key& key, std::string_view path) {
  return path.empty() || key.path == path || key.path.starts_with(std::string(path) + ".");
}

constexpr std::size_t kHelpColumn = 33;

std::string help_line(const Key& key) {
  return hanging(
      key.path,
      fmt::format("{} ({}){}", key.help, default_text(key), key.unbuilt ? " [not built yet]" : ""),
      kHelpColumn);
}

std::string help_for_section(std::string_view path) {
  std::string text;
  for (const Key& key : keys())
    if (in_topic(key, path)) text += help_line(key);
  return text;
}

// Whether a word of `text` begins with the letters of `word`, as plain_name() gives them.
bool mentions(std::string_view text, std::string_view word) {
  bool inside = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool letter = std::isalnum(static_cast<unsigned char>(text[i])) != 0;
    if (letter && !inside && plain_name(text.substr(i)).starts_with(word)) return true;
    inside = letter;
  }
  return false;
}

// Keys that have `word` as a value, under the deck's name or another program's, a line each.
std::string keys_with_value(std::string_view word) {
  const std::string plain = plain_name(word);
  std::string text;
  for (const Key& key : keys()) {
    std::string_view value = synonymous_value(word, key.rules.list);
    for (const std::string_view ours : key.rules.list)
      if (plain_name(ours) == plain) value = ours;
    if (!value.empty())
      text += hanging(fmt::format("{}={}", key.path, value), key.help, kHelpColumn);
  }
  return text;
}

// Keys that have the value `word`, then those whose path, help or synonyms mention it, a line each;
// "" when none does.
std::string keys_that_mention(std::string_view word) {
  const std::string plain = plain_name(word);
  if (plain.size() < 2) return "";
  const auto called_so = [&](const Key& key) {
    return std::any_of(synonyms().begin(), synonyms().end(), [&](const Synonym& synonym) {
      return !synonym.key.empty() && in_topic(key, synonym.key) && mentions(synonym.name, plain);
    });
  };
  std::string text = keys_with_value(word);
  for (const Key& key : keys())
    if (called_so(key) || mentions(key.path, plain) || mentions(key.help, plain))
      text += help_line(key);
  return text;
}

// Where the deck has what other programs call `synonym.name`.
std::string help_for_synonym(const Synonym& synonym) {
  if (synonym.key.empty()) return hanging(fmt::format("{}:", synonym.name), synonym.note, 2);
  const std::string note = synonym.note.empty() ? "" : fmt::format(" ({})", synonym.note);
  const Key* key = find_key(synonym.key);
  return fmt::format("{} is '{}' here{}.\n\n{}", synonym.name, synonym.key, note,
                     key != nullptr ? help_for_key(*key) : help_for_section(synonym.key));
}

}  // namespace

std::string print_deck(const Deck& deck) {
  std::string text;
  std::vector<std::string_view> open;  // the sections that the last line stands in
  for (const Key& key : keys()) {
    if (!key.has_member() || key.family.value_or(deck.model.family) != deck.model.family) continue;
    const auto names = split_path(key.path);
    const std::size_t depth = names.size() - 1;
    const auto parted = std::mismatch(open.begin(), open.end(), names.begin(), names.end() - 1);
    for (std::size_t level = parted.first - open.begin(); level < depth; ++level) {
      text += fmt::format("{:{}}{}:\n", "", 2 * level, names[level]);
    }
    open.assign(names.begin(), names.end() - 1);
    std::string value = key.write(deck);
    const bool has_word = value.empty() && !key.rules.word.empty();
    if (has_word) value = key.rules.word;
    if (value.empty()) {
      text += fmt::format("{:{}}# {}: not set\n", "", 2 * depth, names.back());
    } else {
      text += fmt::format("{:{}}{}: {}{}\n", "", 2 * depth, names.back(), value,
                          has_word || is_default(key, deck) ? "  # default" : "");
    }
  }
  return text;
}

std::string print_value(const Deck& deck, std::string_view path) {
  const Key* key = find_key(path);
  if (!key && is_section(path))
    throw UsageError("'{}' is a section: name one of its keys, {}", path,
                     fmt::join(children(path), ", "));
  if (!key || !key->has_member()) {
    std::vector<std::string_view> paths;
    for (const Key& other : keys()) paths.push_back(other.path);
    throw UsageError("unknown key '{}'{}", path, did_you_mean(path, paths));
  }
  const std::string yaml = key->write(deck);
  Problems ignored("", {});
  const Item item = read_yaml(yaml, 0, ignored);
  return item.kind == Item::Kind::scalar ? item.text : yaml;
}

std::string help(std::string_view topic) {
  if (topic == "deck") return help_for_section("") + kNotes;
  const bool is_path = topic.starts_with("deck.");
  const std::string_view path = is_path ? topic.substr(5) : topic;
  if (const Key* key = find_key(path)) return help_for_key(*key);
  if (is_section(path)) return help_for_section(path);
  if (is_path) throw UsageError("the deck has no section or key '{}'{}", path, suggestion(path));
  if (const Synonym* synonym = find_synonym(topic)) return help_for_synonym(*synonym);
  if (const std::string found = keys_that_mention(topic); !found.empty()) return found;
  throw UsageError("no key of the deck mentions '{}'{}; '--help deck' lists every key", topic,
                   suggestion(topic));
}

namespace {

std::string value_of(const Key& key, const Deck& deck) {
  const std::string value = key.write(deck);
  if (!value.empty()) return value;
  return key.rules.word.empty() ? "not set" : key.rules.word;
}

// data.split without the parts that have separate datasets, one weight for each part.
std::vector<double> shares_of(const Deck& deck) {
  std::vector<double> weights = effective_split(deck);
  weights.resize(3);
  return weights;
}

// The share of data.train's documents that are trained on, from the first one on.
double train_share(const Deck& deck) {
  const std::vector<double> weights = shares_of(deck);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  return sum > 0 ? weights[0] / sum : 0;
}

// The data.split with which `run` trains on the documents of `checkpoint`; "" where none does.
std::string split_for(const Deck& checkpoint, const Deck& run) {
  std::vector<double> weights = shares_of(checkpoint);
  // What a part with its own datasets would take is left to the other one.
  if (run.data.valid) weights[2] += std::exchange(weights[1], 0);
  if (run.data.test) weights[1] += std::exchange(weights[2], 0);
  Deck deck = run;
  deck.data.split = weights;
  return train_share(deck) == train_share(checkpoint) ? Codec<std::vector<double>>::write(weights)
                                                      : "";
}

// Whether `key`, whose value differs, may change how data.train is shared out.
bool shares_out(const std::string& key, const Deck& checkpoint, const Deck& run) {
  return key == "data.split" ||
         (key == "data.valid" && checkpoint.data.valid.has_value() != run.data.valid.has_value()) ||
         (key == "data.test" && checkpoint.data.test.has_value() != run.data.test.has_value());
}

// Fixes the changes by which `run` trains on other documents of data.train, and takes those of
// data.split by which it does not for harmless.
void judge_split(const Deck& checkpoint, const Deck& run, std::vector<Change>& changes) {
  const double before = train_share(checkpoint), after = train_share(run);
  for (Change& change : changes) {
    if (!shares_out(change.key, checkpoint, run)) continue;
    change.rule = before == after ? RestartRule::warn : RestartRule::immutable;
    if (before == after) continue;
    const std::string split = split_for(checkpoint, run);
    change.reason = fmt::format(
        "the run would train on {:.6g} % of the documents of data.train, not on {:.6g} % (try {}a "
        "new run)",
        100 * after, 100 * before, split.empty() ? "" : fmt::format("data.split = {}, or ", split));
  }
}

/// A size that one deck gives and one that a tokenizer gave can only be compared by the tensors.
void judge_vocabulary(const Deck& checkpoint, const Deck& run, std::vector<Change>& changes) {
  for (Change& change : changes)
    if (change.key == "model.vocab" && !(checkpoint.model.vocab && run.model.vocab))
      change.rule = RestartRule::warn;
}

}  // namespace

std::vector<Change> compare_for_restart(const Deck& checkpoint, const Deck& run) {
  std::vector<Change> changes;
  for (const Key& key : keys()) {
    if (!key.has_member()) continue;
    const std::string before = value_of(key, checkpoint);
    const std::string after = value_of(key, run);
    if (before != after) changes.push_back({key.path, before, after, key.restart, ""});
  }
  judge_split(checkpoint, run, changes);
  judge_vocabulary(checkpoint, run, changes);
  return changes;
}

std::string describe(const Change& change) {
  return fmt::format("{}: {} in the checkpoint, {} now", change.key, change.before, change.after);
}

void refuse_immutable_changes(const std::vector<Change>& changes) {
  std::vector<InvalidDeck::Line> lines;
  for (const Change& change : changes) {
    if (change.rule != RestartRule::immutable) continue;
    const std::string line = fmt::format(
        "{} = {}, but the checkpoint was written with {}; it must stay that{}{}", change.key,
        change.after, change.before, change.reason.empty() ? "" : ": ", change.reason);
    lines.push_back({line, 0, line});
  }
  if (!lines.empty()) throw InvalidDeck(std::move(lines));
}

}  // namespace trireme::deck
