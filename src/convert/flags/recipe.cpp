// The flags of a recipe: parsed from a command line or a ds_config.json, and read by the rules.
#include "convert/flags/recipe.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "convert/shell/script.hpp"
#include "core/error.hpp"
#include "deck/keys/schema.hpp"
#include "deck/value.hpp"

namespace trireme::convert::flags {
namespace {

/// Whether a row stands for all flags with its beginning.
bool is_group(const Flag& flag) { return flag.name.ends_with('*'); }

using shell::has_unknown;
using shell::shown;

// Limit on the nesting of a ds_config.json; DeepSpeed's own has four levels.
constexpr int kMaxDepth = 64;

bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

/// Whether `word` begins a flag rather than being a value such as -1.
bool is_flag(const std::string& word) {
  return word.size() > 1 && word[0] == '-' && !std::isdigit(static_cast<unsigned char>(word[1])) &&
         word[1] != '.';
}

/// The name in `--name` and `--name=value`; "" for dashes alone.
std::string bare_name(const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  return name.substr(std::min(name.find_first_not_of('-'), name.size()));
}

/// Flags whose value is not used, or is found in other ways.
bool may_be_unknown(const Flag& flag) {
  return flag.fate == Fate::dropped || flag.name == "deepspeed-config" ||
         flag.name == "tensorboard-dir";
}

/// `--define NAME=...` for the variable named by the mark `source`; "" for other sources.
std::string definition_of(std::string_view source) {
  if (source.empty()) return "";  // the script has the mark's own byte
  std::string_view name = source.substr(1);
  if (name.starts_with("{")) name.remove_prefix(1);
  const auto end = std::find_if_not(name.begin(), name.end(), is_name);
  name = name.substr(0, end - name.begin());
  if (name.empty() || source[0] != '$') return "";
  return fmt::format("give --define {}=...", name);
}

class Parser {
 public:
  Parser(const std::string& place, const std::set<std::string>& ignored)
      : place_(place), ignored_(ignored) {}

  void parse(const std::vector<std::string>& words) {
    for (at_ = 0; at_ < words.size();) {
      const std::string& word = words[at_++];
      if (is_flag(word) && !bare_name(word).empty())
        one_flag(word, words);
      else
        stray(word);
    }
  }

  Parsed parsed;

 private:
  void one_flag(const std::string& word, const std::vector<std::string>& words);
  void stray(const std::string& word);
  void error(std::string message) { parsed.errors.push_back({place_, std::move(message)}); }
  void note(std::string message) { parsed.notes.push_back({place_, std::move(message)}); }

  const std::string& place_;
  const std::set<std::string>& ignored_;
  std::size_t at_ = 0;
};

void Parser::stray(const std::string& word) {
  if (has_unknown(word))
    note(fmt::format("{} is ignored: {}", shown(word), unknown_values(word)));
  else if (!word.empty())
    error(fmt::format("'{}' is not a value of any flag", word));
}

void Parser::one_flag(const std::string& word, const std::vector<std::string>& words) {
  const std::size_t equals = word.find('=');
  Given given{.name = word.substr(0, equals), .place = place_};
  if (equals != std::string::npos) given.values.push_back(word.substr(equals + 1));
  const std::string bare = bare_name(word);
  const bool ignored = ignored_.contains(bare);
  given.flag = find_flag(command_flags(), bare);
  const Takes takes = ignored || !given.flag ? Takes::several : given.flag->takes;
  while (at_ < words.size() && !is_flag(words[at_])) {
    if (takes == Takes::nothing || (takes == Takes::one && !given.values.empty())) break;
    given.values.push_back(words[at_++]);
  }
  if (ignored) {
    parsed.ignored.insert(bare);
    note(fmt::format("{} is ignored (--ignore)", shown(given.text())));
    return;
  }
  if (!given.flag) {
    error(fmt::format("unknown flag '{}'{} (--ignore {} skips it)", given.name,
                      suggestion(command_flags(), bare, "--"), bare));
    return;
  }
  const std::string text = given.text();
  const bool unknown = has_unknown(text) && !may_be_unknown(*given.flag);
  if (takes == Takes::nothing && !given.values.empty())
    return error(fmt::format("{} takes no value", shown(text)));
  const bool needs_value = takes == Takes::one || takes == Takes::several;
  if (needs_value && given.values.empty()) return error(fmt::format("{} has no value", given.name));
  if (unknown) {
    parsed.arguments.add_unreadable(given.flag->name);
    return error(fmt::format("{}: {}", shown(text), unknown_values(text)));
  }
  const Given* before = parsed.arguments.find(given.flag->name);
  if (before && before->values != given.values && !is_group(*given.flag))
    note(fmt::format("{} overrides the earlier {}", shown(given.text()), shown(before->text())));
  parsed.arguments.add(std::move(given));
}

/// Parses the JSON file `text`, which may contain comments. Throws DataError with the place of an
/// error.
nlohmann::json read_json(const std::string& text, const std::string& name) {
  // add_json() recurses once per level.
  const auto check_depth = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    if (depth > kMaxDepth) throw DataError("'{}' is nested more than {} deep", name, kMaxDepth);
    return true;
  };
  try {
    return nlohmann::json::parse(text, check_depth, /*allow_exceptions=*/true,
                                 /*ignore_comments=*/true);
  } catch (const nlohmann::json::exception& error) {  // numbers beyond a double are no parse_error
    // The library's message begins with its own name.
    const std::string_view message = error.what();
    const std::size_t place = message.find("at line ");
    const std::size_t name_end = message.find("] ");
    throw DataError("'{}' is not JSON: {}", name,
                    message.substr(place != std::string_view::npos      ? place
                                   : name_end != std::string_view::npos ? name_end + 2
                                                                        : 0));
  }
}

/// Whether a part of the file says itself that it has no say: {"enabled": false}, and what is
/// offloaded to the device "none".
bool is_switched_off(const nlohmann::json& value) {
  return value.is_object() && (value.value("enabled", nlohmann::json()) == false ||
                               value.value("device", nlohmann::json()) == "none");
}

/// Adds the keys below `value`, which has the `path`, to `parsed`.
void add_json(const nlohmann::json& value, const std::string& path, const std::string& name,
              const std::set<std::string>& ignored, Parsed& parsed) {
  const std::string shown_path = fmt::format("\"{}\"", path);
  if (ignored.contains(path)) {
    parsed.ignored.insert(path);
    parsed.notes.push_back({name, shown_path + " is ignored (--ignore)"});
    return;
  }
  const Flag* flag = find_flag(json_keys(), path);
  if (!flag && value.is_object()) {
    for (const auto& [key, inner] : value.items())
      add_json(inner, path.empty() ? key : path + "." + key, name, ignored, parsed);
    return;
  }
  if (!flag) {
    parsed.errors.push_back(
        {name, fmt::format("unknown key {}{} (--ignore {} skips it)", shown_path,
                           suggestion(json_keys(), path, ""), path)});
    return;
  }
  if (is_switched_off(value) || (flag->fate == Fate::refused && value == false)) return;
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  if (text == "auto") return;  // the command line decides
  if (flag->fate != Fate::dropped && value.is_structured() && flag->fate != Fate::refused)
    parsed.errors.push_back({name, fmt::format("{} must be a single value", shown_path)});
  else
    parsed.arguments.add({flag, shown_path + ":", {value.is_structured() ? "..." : text}, name});
}

}  // namespace

std::string Given::text() const {
  return values.empty() ? name : fmt::format("{} {}", name, fmt::join(values, " "));
}

void Arguments::add(Given given) {
  std::erase_if(given_, [&](const Given& other) {
    return other.flag == given.flag && (!is_group(*given.flag) || other.name == given.name);
  });
  given_.push_back(std::move(given));
}

const Given* Arguments::find(std::string_view name) const {
  const auto found = std::find_if(given_.begin(), given_.end(),
                                  [&](const Given& given) { return given.flag->name == name; });
  return found == given_.end() ? nullptr : &*found;
}

Parsed parse_flags(const std::vector<std::string>& words, const std::string& place,
                   const std::set<std::string>& ignored) {
  Parser parser(place, ignored);
  parser.parse(words);
  return std::move(parser.parsed);
}

Parsed parse_json(const std::string& text, const std::string& name,
                  const std::set<std::string>& ignored) {
  const nlohmann::json root = read_json(text, name);
  if (!root.is_object()) throw DataError("'{}' is not a JSON object", name);
  Parsed parsed;
  add_json(root, "", name, ignored, parsed);
  return parsed;
}

std::string unknown_values(std::string_view text) {
  std::vector<std::string> sources;
  for (std::size_t at = 0; (at = text.find(shell::kUnknownBegin, at)) != std::string_view::npos;) {
    const std::size_t end = std::min(text.find(shell::kUnknownEnd, at), text.size());
    const std::string source(text.substr(at + 1, end - at - 1));
    const std::string define = definition_of(source);
    sources.push_back(fmt::format("the script does not define {} ({})", source,
                                  define.empty() ? "replace it with its value" : define));
    at = end;
  }
  return fmt::format("{}", fmt::join(sources, "; "));
}

// ---- a recipe's flags

std::string as_number(const std::string& text) { return text.starts_with('.') ? "0" + text : text; }

std::optional<std::int64_t> Recipe::whole(const Given* given) {
  if (!given) return std::nullopt;
  deck::Item item;
  item.kind = deck::Item::Kind::scalar;
  item.text = given->values[0];
  try {
    return deck::read_whole(item);
  } catch (const deck::BadValue& problem) {
    draft.error(*given, problem.what());
    return std::nullopt;
  }
}

const Given* Recipe::one_of(std::string_view first, std::string_view second) {
  const Given* a = flags.find(first);
  const Given* b = flags.find(second);
  if (a && b)
    draft.error(*b, fmt::format("'{}' is the same option of another version; keep one of the two",
                                a->text()));
  return a ? a : b;
}

void Recipe::copy(const Given& given, std::string_view key, std::string_view unit) {
  const deck::Key* row = deck::find_key(key);
  const std::string& value = given.values[0];
  const bool text = row && row->type == deck::Codec<std::string>::kType;
  const std::string yaml = text ? deck::write_text(value) : as_number(value);
  draft.set(key, unit.empty() ? yaml : fmt::format("{} {}", yaml, unit), given);
}

void Recipe::copy_or(std::string_view name, std::string_view key, std::string_view fallback,
                     std::string_view unit) {
  if (const Given* given = flags.find(name)) return copy(*given, key, unit);
  if (fallback.empty()) return;
  const std::string yaml(fallback);
  draft.set(key, unit.empty() ? yaml : fmt::format("{} {}", yaml, unit), kMegatronDefault);
}

std::int64_t Recipe::tensor() {
  const Given* given = flags.find("tensor-model-parallel-size");
  return whole(given ? given : flags.find("model-parallel-size")).value_or(1);
}

std::int64_t Recipe::pipeline() {
  const Given* given = flags.find("pipeline-model-parallel-size");
  // A pipeline of 0 stages is v1.1.5's word for no pipeline.
  return std::max<std::int64_t>(whole(given ? given : flags.find("pipe-parallel-size")).value_or(1),
                                1);
}

std::optional<std::int64_t> Recipe::data() {
  const std::int64_t model = std::max<std::int64_t>(tensor(), 1) * pipeline();
  if (!ranks || ranks->count % model != 0) return std::nullopt;
  return ranks->count / model;
}

}  // namespace trireme::convert::flags
