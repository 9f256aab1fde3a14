#include "deck/load.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "core/error.hpp"
#include "core/files.hpp"
#include "core/text.hpp"
#include "deck/checks/checks.hpp"
#include "deck/document.hpp"
#include "deck/keys/schema.hpp"
#include "deck/value.hpp"

namespace trireme::deck {
namespace {

// One value with the key it belongs to.
struct Setting {
  const Key* key = nullptr;
  Item item;
  Place place;
};

// Finds which key each item of the deck and its overrides belongs to.
class Collector {
 public:
  explicit Collector(Problems& problems) : problems_(problems) {}

  void read_deck(std::string_view text, bool has_overrides);
  void read_override(const std::string& text, int source);

  const std::map<std::string, Setting, std::less<>>& settings() const { return settings_; }
  bool readable() const { return readable_; }

  // Where the deck has a sweep section, unless an override has taken it away.
  const std::optional<Place>& sweep() const { return sweep_; }

  const std::map<std::string, Place, std::less<>>& sections() const { return sections_; }

  // Where a key that is missing belongs: its section, or nowhere in particular.
  Place place_of_section(std::string_view path) const {
    const auto section = sections_.find(path.substr(0, path.rfind('.')));
    return section == sections_.end() ? Place{} : section->second;
  }

 private:
  void put(const std::string& path, const Item& item, const Place& place);
  void put_section(const std::string& path, const Item& mapping);
  void restore_defaults(const std::string& path, const Place& place);
  void refuse_loose_numbers(const Item& mapping, std::size_t first, std::size_t numbers);
  bool is_new_name(const std::string& path, const Item& key, std::map<std::string, Place>& seen);

  Problems& problems_;
  std::map<std::string, Setting, std::less<>> settings_;
  std::map<std::string, Place, std::less<>> sections_;
  std::optional<Place> sweep_;
  bool readable_ = true;
};

void Collector::read_deck(std::string_view text, bool has_overrides) {
  const Item root = read_yaml(text, 0, problems_);
  if (root.kind == Item::Kind::refused) {
    readable_ = false;
  } else if (root.kind == Item::Kind::null && !has_overrides) {
    readable_ = false;
    problems_.add(root.place, "an empty deck; inputs/quickstart.yaml is one to start from");
  } else if (root.kind == Item::Kind::mapping) {
    put_section("", root);
  } else if (root.kind != Item::Kind::null) {
    readable_ = false;
    problems_.add(root.place, fmt::format("a deck is made of sections such as 'model:', found {}",
                                          found(root)));
  }
}

void Collector::read_override(const std::string& text, int source) {
  const Place place{source, 0, 0};
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    const bool deck = text.ends_with(".yaml") || text.ends_with(".yml");
    const std::size_t colon = std::min(text.find(':'), text.size());
    const std::string key = text.substr(0, colon);
    if (deck)
      problems_.add(place, fmt::format("'{}' is a second deck: one is read", text));
    else if (find_key(key) || is_section(key))
      problems_.add(place, fmt::format("an override is written key=value: {}={}", key,
                                       colon < text.size() ? text.substr(colon + 1) : "VALUE"));
    else
      problems_.add(place, "an override is written key=value, such as model.layers=12");
    return;
  }
  const std::string path = text.substr(0, equals);
  if (text == "sweep=") {
    sweep_.reset();
    return;
  }
  if (equals + 1 == text.size() && (find_key(path) != nullptr || is_section(path))) {
    restore_defaults(path, place);
    return;
  }
  put(path, read_yaml(std::string_view(text).substr(equals + 1), source, problems_), place);
}

// Forgets what was given for the key, or for all keys of the section, that is called `path`.
void Collector::restore_defaults(const std::string& path, const Place& place) {
  std::erase_if(settings_, [&](const auto& setting) {
    return setting.first == path || setting.first.starts_with(path + ".");
  });
  if (is_section(path)) sections_[path] = place;
}

// Reports a name that is not a plain word or that its section has already.
bool Collector::is_new_name(const std::string& path, const Item& key,
                            std::map<std::string, Place>& seen) {
  if (key.kind == Item::Kind::refused) return false;
  if (key.kind != Item::Kind::scalar) {
    problems_.add(key.place, fmt::format("a key must be a word, found {}", found(key)));
    return false;
  }
  if (key.text.empty()) {
    problems_.add(key.place, "a key must be a word, found \"\"");
    return false;
  }
  if (key.text == "<<") {
    problems_.add(key.place, "merge keys ('<<') have no place in a deck; write the keys out");
    return false;
  }
  const auto [first, is_new] = seen.try_emplace(key.text, key.place);
  if (is_new) return true;
  const Place& place = first->second;
  problems_.add(key.place, place.source > 0 ? fmt::format("repeated key '{}'", printable(path))
                                            : fmt::format("repeated key '{}' (first in line {})",
                                                          printable(path), place.line));
  return false;
}

// How many numbers without a value stand in `mapping` from the key `first` on, after a key with
// one: what YAML makes of {split: 969,30,1}.
std::size_t loose_numbers(const Item& mapping, std::size_t first) {
  std::size_t end = first;
  while (end < mapping.keys.size() && mapping.items[end].kind == Item::Kind::null &&
         mapping.keys[end].kind == Item::Kind::scalar &&
         leading_number(mapping.keys[end].text).size() == mapping.keys[end].text.size() &&
         !mapping.keys[end].text.empty())
    ++end;
  const bool after_value = first > 0 && mapping.items[first - 1].kind == Item::Kind::scalar;
  return after_value ? end - first : 0;
}

// Says how to write the list that the `numbers` keys from `first` on belong to.
void Collector::refuse_loose_numbers(const Item& mapping, std::size_t first, std::size_t numbers) {
  std::string list = mapping.items[first - 1].text;
  for (std::size_t i = first; i < first + numbers; ++i) list += "," + mapping.keys[i].text;
  problems_.add(mapping.keys[first].place,
                fmt::format("a list inside {{}} needs quotes: {}: \"{}\"",
                            printable(mapping.keys[first - 1].text), printable(list)));
}

void Collector::put_section(const std::string& path, const Item& mapping) {
  std::map<std::string, Place> seen;
  for (std::size_t i = 0; i < mapping.keys.size(); ++i) {
    const Item& key = mapping.keys[i];
    const std::string child = path.empty() ? key.text : path + "." + key.text;
    if (const std::size_t numbers = loose_numbers(mapping, i); numbers > 0) {
      refuse_loose_numbers(mapping, i, numbers);
      i += numbers - 1;
      continue;
    }
    if (!is_new_name(child, key, seen)) {
      // What a repeated section holds is not missing as well.
      const bool section = mapping.items[i].kind == Item::Kind::mapping && is_section(child);
      if (section && key.kind == Item::Kind::scalar) put_section(child, mapping.items[i]);
      continue;
    }
    const bool dotted = key.text.find('.') != std::string::npos;
    if (dotted && (find_key(child) != nullptr || is_section(child))) {
      const std::size_t dot = key.text.find('.');
      problems_.add(key.place, fmt::format("write '{}' as '{}' inside the section '{}:'", key.text,
                                           key.text.substr(dot + 1), key.text.substr(0, dot)));
      continue;
    }
    // Inside an override every place is the override.
    const Place place = key.place.source > 0 ? Place{key.place.source, 0, 0} : key.place;
    put(child, mapping.items[i], place);
  }
}

// The first character of a UTF-8 text that is not ASCII, as U+200B; "" where there is none.
std::string foreign_character(std::string_view text) {
  const auto begin = std::ranges::find_if(text, [](char c) { return (c & 0x80) != 0; });
  if (begin == text.end()) return "";
  const auto lead = static_cast<unsigned char>(*begin);
  const int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
  unsigned code = lead & (0x3F >> more);
  for (int i = 1; i <= more && begin + i < text.end(); ++i)
    code = code << 6 | (static_cast<unsigned char>(begin[i]) & 0x3F);
  return fmt::format("U+{:04X}", code);
}

// How the unknown key `path` may have been meant.
std::string way_out(const std::string& path) {
  const auto has = [&](std::string_view part) { return path.find(part) != std::string::npos; };
  if (has(":")) return " — write a space after the colon";
  if (has("\uff1a")) return " — write the ASCII colon ':' and a space";
  if (has("\u00a0")) return " — it has a no-break space; indent with spaces";
  if (has("=")) return " — in a deck it is KEY: VALUE, inside the key's section";
  if (path.ends_with(' ')) return " — take away the blank after it";
  if (const std::string character = foreign_character(path); !character.empty())
    return fmt::format(" — it has the character {}; keys are ASCII", character);
  return suggestion(path);
}

// What to write for the section `path` where a value stands.
std::string section_form(const std::string& path, const Item& item) {
  const auto names = children(path);
  const bool has_value = std::ranges::find(names, "value") != names.end();
  if (!has_value || item.kind != Item::Kind::scalar) return "";
  return fmt::format("; write {{value: {}}}", printable(item.text));
}

void Collector::put(const std::string& path, const Item& item, const Place& place) {
  if (item.kind == Item::Kind::refused) return;
  if (path == "sweep" || path.starts_with("sweep.")) {
    sweep_ = place;
  } else if (const Key* key = find_key(path)) {
    settings_[path] = {key, item, place};
  } else if (!is_section(path)) {
    problems_.add(place, fmt::format("unknown key '{}'{}", printable(path), way_out(path)));
  } else if (item.kind == Item::Kind::mapping) {
    sections_.try_emplace(path, place);
    put_section(path, item);
  } else if (item.kind == Item::Kind::null && place.source == 0) {
    sections_.try_emplace(path, place);
  } else {
    const auto names = children(path);
    problems_.add(place,
                  fmt::format("'{}' is a section with the keys {}; found {}{}", path,
                              fmt::join(names, ", "), found(item), section_form(path, item)));
  }
}

std::string bad_value(const Key& key, const Item& item, const std::string& message) {
  switch (item.kind) {
    case Item::Kind::scalar:
      return fmt::format("{} = {}: {}", key.path, found(item), message);
    case Item::Kind::null:
      return fmt::format("{} has no value; give one or leave the key out", key.path);
    case Item::Kind::list:
    case Item::Kind::mapping:
    case Item::Kind::refused:
      break;
  }
  return fmt::format("{}: {}", key.path, message);
}

std::string not_built(const Key& key, const std::string& value) {
  const std::string reason = key.reason.empty() ? "" : ": " + key.reason;
  if (key.unbuilt) {
    return fmt::format("'{}' is not built yet{}; leave it out", key.path, reason);
  }
  std::vector<std::string> quoted;
  for (const std::string& word : key.built) quoted.push_back("'" + word + "'");
  return fmt::format("'{}: {}' is not built yet{}; leave it out or write {}", key.path, value,
                     reason, alternatives(quoted));
}

// "; leave the key out for none" where the value seems to mean that.
std::string way_to_unset(const Key& key, const std::string& text) {
  const bool unset = !key.required && key.fallback.empty() && !key.derive &&
                     (key.fallback_words.empty() || !key.rules.word.empty());
  const auto means_none = [&](const char* word) { return text == word; };
  constexpr const char* kWords[] = {"0", "-1", "none", "None", "never", "no", "off", "false"};
  if (!unset || std::ranges::none_of(kWords, means_none)) return "";
  if (key.rules.word.empty()) return key.rules.units.empty() ? "" : "; leave the key out for none";
  return fmt::format("; the key's default is '{}'", key.rules.word);
}

// Reads one setting into the deck. Returns what is wrong with it, if anything.
std::optional<std::string> apply(const Setting& setting, Unit bare, Deck& deck) {
  const Key& key = *setting.key;
  if (key.unbuilt) return not_built(key, "");
  Rules rules = key.rules;
  rules.bare = bare;
  try {
    key.read(deck, setting.item, rules);
  } catch (const BadValue& error) {
    return bad_value(key, setting.item, error.what() + way_to_unset(key, setting.item.text));
  }
  const std::string value = key.write(deck);
  const bool is_built =
      key.built.empty() || std::find(key.built.begin(), key.built.end(), value) != key.built.end();
  if (!is_built) return not_built(key, value);
  return std::nullopt;
}

// Fills the deck: fixed defaults, what was given, then defaults that depend on other keys.
Deck fill(const Collector& collector, const std::string& filename, const LoadOptions& options,
          Given& given, Problems& problems) {
  Deck deck = fixed_defaults();
  deck.run.name = std::filesystem::path(filename).stem().string();
  given.places = collector.sections();
  const auto& settings = collector.settings();
  if (!settings.contains("run.name") && !is_plain_line(deck.run.name)) {
    problems.add(collector.place_of_section("run.name"),
                 "run.name is the deck's file name where it is not given, and that is not UTF-8 "
                 "without control characters; give run.name");
    given.bad.insert("run.name");
  }
  const Unit bare = settings.contains("train.samples") ? Unit::samples : Unit::iterations;
  for (const auto& [path, setting] : settings) {
    given.places[path] = setting.place;
    const auto problem = apply(setting, bare, deck);
    if (!problem) continue;
    problems.add(setting.place, *problem);
    given.bad.insert(path);
  }
  if (deck.run.device == Device::automatic) deck.run.device = options.automatic;
  for (const Key& key : keys()) {
    if (settings.contains(key.path)) continue;
    if (key.derive) key.derive(deck);
    if (!key.required) continue;
    problems.add(collector.place_of_section(key.path),
                 fmt::format("missing key '{}': {}", key.path, key.help), /*missing=*/true);
    given.bad.insert(key.path);
  }
  if (!settings.contains("train.iterations") && !settings.contains("train.samples")) {
    problems.add(collector.place_of_section("train.iterations"),
                 "missing key 'train.iterations' or 'train.samples': how long to train",
                 /*missing=*/true);
    given.bad.insert("train.iterations");
  }
  return deck;
}

// No deck comes near to it.
constexpr std::size_t kMaxDeckBytes = std::size_t{16} << 20;

}  // namespace

std::string read_deck(const std::filesystem::path& path) {
  std::string text = read_file(path, kMaxDeckBytes);
  if (text.size() > kMaxDeckBytes) {
    throw DeckError("'{}' is larger than {} MiB: not a deck", path.string(), kMaxDeckBytes >> 20);
  }
  return text;
}

Deck load(const std::filesystem::path& path, const std::vector<std::string>& overrides,
          const LoadOptions& options) {
  const std::string kind = path.extension().string();
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path / "deck.yaml", ignored))
    throw IoError("'{}' is a run folder: its deck is '{}'", path.string(),
                  (path / "deck.yaml").string());
  if (kind == ".sh" || kind == ".sbatch" || kind == ".py")
    throw DeckError("{}: not a deck; 'trireme-convert flags {}' makes one of a launch script",
                    path.string(), path.string());
  for (const char* other : {".md", ".h5", ".bin", ".idx", ".jsonl", ".txt", ".log"})
    if (kind == other)
      throw DeckError("{}: not a deck, which is a YAML file such as inputs/quickstart.yaml",
                      path.string());
  return parse(read_deck(path), path.string(), overrides, options);
}

Deck parse(std::string_view text, const std::string& filename,
           const std::vector<std::string>& overrides, const LoadOptions& options) {
  std::vector<std::string> shown;
  for (const std::string& each : overrides) shown.push_back(printable(each));
  Problems problems(filename, shown);
  Collector collector(problems);
  collector.read_deck(text, !overrides.empty());
  for (std::size_t i = 0; i < overrides.size(); ++i) {
    collector.read_override(overrides[i], static_cast<int>(i) + 1);
  }
  // What a deck that cannot be read lacks is not known.
  if (!collector.readable()) problems.raise();
  if (collector.sweep()) {
    problems.add(*collector.sweep(),
                 fmt::format("'sweep' makes many runs of this deck: start them with 'trireme-sweep "
                             "{}', or train the deck alone with the override 'sweep='",
                             filename));
  }
  Given given;
  const Deck deck = fill(collector, filename, options, given, problems);
  check_together(deck, given, options, problems);
  problems.raise_if_any();
  return deck;
}

void resolve_world_size(Deck& deck, std::int64_t ranks) {
  const std::int64_t tensor = deck.parallel.tensor;
  const std::int64_t pipeline = deck.parallel.pipeline;
  const std::int64_t model = tensor * pipeline;
  const bool fits = ranks % model == 0;
  const std::int64_t data = deck.parallel.data.value_or(ranks / model);
  const auto refuse = [](const std::string& line) { throw InvalidDeck(line); };
  if (!deck.parallel.data && (!fits || data == 0)) {
    const std::int64_t above = (ranks / model + 1) * model;
    refuse(fmt::format(
        "parallel: tensor * pipeline = {} * {} = {} does not divide the {} started "
        "(try {} ranks)",
        tensor, pipeline, model,
        ranks == 1 ? "1 rank that was" : fmt::format("{} ranks that were", ranks),
        above == model ? fmt::format("{}", above) : fmt::format("{} or {}", above - model, above)));
  }
  if (model * data != ranks) {
    refuse(fmt::format(
        "parallel: tensor * pipeline * data = {} * {} * {} = {}, but {} started (try {}{})", tensor,
        pipeline, data, model * data,
        ranks == 1 ? "1 rank was" : fmt::format("{} ranks were", ranks),
        fits && ranks > 0 ? fmt::format("data: {}, or ", ranks / model) : "",
        counted(model * data, "rank")));
  }
  if (const auto problem = batch_problem(deck, data)) refuse(problem->text);
  deck.parallel.data = data;
}

}  // namespace trireme::deck
