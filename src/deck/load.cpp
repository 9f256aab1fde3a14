#include "deck/load.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/error.hpp"
#include "core/files.hpp"
#include "core/text.hpp"
#include "deck/checks/checks.hpp"
#include "deck/keys/schema.hpp"
#include "deck/value.hpp"

namespace trireme::deck {
namespace {

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
Deck fill(const Settings& settings, const std::string& filename, const LoadOptions& options,
          Given& given, Problems& problems) {
  Deck deck = fixed_defaults();
  deck.run.name = std::filesystem::path(filename).stem().string();
  given.places = settings.sections();
  if (!settings.values().contains("run.name") && !is_plain_line(deck.run.name)) {
    problems.add(settings.place_of_section("run.name"),
                 "run.name is the deck's file name where it is not given, and that is not UTF-8 "
                 "without control characters; give run.name");
    given.bad.insert("run.name");
  }
  const Unit bare = settings.values().contains("train.samples") ? Unit::samples : Unit::iterations;
  for (const auto& [path, setting] : settings.values()) {
    given.places[path] = setting.place;
    const auto problem = apply(setting, bare, deck);
    if (!problem) continue;
    problems.add(setting.place, *problem);
    given.bad.insert(path);
  }
  if (deck.run.device == Device::automatic) deck.run.device = options.automatic;
  for (const Key& key : keys()) {
    if (settings.values().contains(key.path)) continue;
    if (key.derive) key.derive(deck);
    if (!key.required) continue;
    problems.add(settings.place_of_section(key.path),
                 fmt::format("missing key '{}': {}", key.path, key.help), /*missing=*/true);
    given.bad.insert(key.path);
  }
  if (!settings.values().contains("train.iterations") &&
      !settings.values().contains("train.samples")) {
    problems.add(settings.place_of_section("train.iterations"),
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
  Settings settings(problems);
  settings.read_deck(text, !overrides.empty());
  for (std::size_t i = 0; i < overrides.size(); ++i) {
    settings.read_override(overrides[i], static_cast<int>(i) + 1);
  }
  // What a deck that cannot be read lacks is not known.
  if (!settings.readable()) problems.raise();
  if (settings.sweep()) {
    problems.add(*settings.sweep(),
                 fmt::format("'sweep' makes many runs of this deck: start them with 'trireme-sweep "
                             "{}', or train the deck alone with the override 'sweep='",
                             filename));
  }
  Given given;
  const Deck deck = fill(settings, filename, options, given, problems);
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
