// From a script or a command line to a deck: reading the recipe, applying the table and the rules,
// and writing the deck.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <system_error>

#include "convert/convert.hpp"
#include "convert/flags/recipe.hpp"
#include "convert/shell/script.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "deck/keys/schema.hpp"
#include "deck/load.hpp"
#include "deck/value.hpp"

namespace trireme::convert::flags {
namespace {

namespace fs = std::filesystem;

// More than any script or configuration has.
constexpr std::size_t kMaxBytes = std::size_t{16} << 20;

/// The text of a script or a configuration, which is a regular file. Throws DataError for what is
/// too large, and IoError.
std::string read_input(const fs::path& path) {
  require_regular_file(path);
  std::string text = read_file(path, kMaxBytes);
  if (text.size() > kMaxBytes)
    throw DataError("'{}' has more than {}: it is no script or configuration", path.string(),
                    human_bytes(static_cast<double>(kMaxBytes)));
  return text;
}

shell::Run read_script(const Request& request) {
  if (!request.file.empty())
    return shell::follow(read_input(request.file), request.file, request.definitions,
                         request.arguments);
  return {.commands = {{request.words, request.words_of, 0}}};
}

/// The DeepSpeed configuration: what --ds-config names, else what the command line names, which the
/// script may write itself, and whose folder may not be known.
struct Configuration {
  std::string name;
  std::string text;
};

Configuration find_configuration(const Request& request, const shell::Run& run,
                                 const Given& given) {
  if (!request.ds_config.empty())
    return {request.ds_config.string(), read_input(request.ds_config)};
  const std::string& path = given.values[0];
  if (const auto written = run.files.find(path); written != run.files.end()) {
    if (shell::has_unknown(written->second))
      throw DataError("{}: {}: {}; or give the whole file with --ds-config", given.place,
                      shell::shown(path), unknown_values(written->second));
    return {shell::shown(path), written->second};
  }
  const fs::path next_to_script = request.file.parent_path() / fs::path(path).filename();
  std::error_code ignored;
  for (const fs::path& candidate : {fs::path(path), next_to_script})
    if (fs::is_regular_file(candidate, ignored)) return {candidate.string(), read_input(candidate)};
  throw DataError("{}: '{}' does not exist: give the file with --ds-config", given.place,
                  shell::shown(path));
}

void take_remarks(Recipe& recipe, const Parsed& parsed) {
  for (const Remark& remark : parsed.errors) recipe.draft.error(remark.place, remark.message);
  for (const Remark& remark : parsed.notes) recipe.draft.note(remark.place, remark.message);
}

/// Applies flags whose row is sufficient: keys, ignored and refused flags.
void apply_rows(Recipe& recipe, const Arguments& arguments) {
  for (const Given& given : arguments.all()) {
    const Flag& flag = *given.flag;
    if (flag.fate == Fate::dropped)
      recipe.draft.leave_out(given, flag.note);
    else if (flag.fate == Fate::refused)
      recipe.draft.error(given, flag.note);
    else if (flag.fate == Fate::key && flag.takes == Takes::nothing)
      recipe.draft.set(flag.key, std::string(flag.word), given);
    else if (flag.fate == Fate::key)
      recipe.copy(given, flag.key, flag.word);
  }
}

void apply_rules(Recipe& recipe) {
  apply_token_rules(recipe);
  apply_model_rules(recipe);
  apply_layout_rules(recipe);
  apply_recompute_rules(recipe);
  apply_batch_rules(recipe);
  apply_precision_rules(recipe);
  apply_schedule_rules(recipe);
  apply_data_rules(recipe);
  apply_output_rules(recipe);
}

/// Throws a DeckError with `errors` and, after them, `hints` at their cause.
[[noreturn]] void refuse(const std::vector<Remark>& errors, const std::vector<Remark>& hints = {}) {
  std::string text;
  for (const Remark& remark : errors) text += fmt::format("{}: {}\n", remark.place, remark.message);
  for (const Remark& hint : hints) text += fmt::format("{}: {}\n", hint.place, hint.message);
  throw DeckError("{}{} error{}; no deck was written.", text, errors.size(),
                  errors.size() == 1 ? "" : "s");
}

/// Refuses other networks by name, without checking their flags.
void refuse_other_networks(const Recipe& recipe) {
  for (const std::string_view other : {"t5", "_ict", "vit", "vision", "retro", "realm", "biencoder",
                                       "multimodal", "vlm", "llava", "mamba", "hybrid"})
    if (recipe.program.find(other) != std::string::npos)
      refuse({{recipe.place,
               recipe.program +
                   " trains a model that Trireme does not support: it trains GPT and BERT"}});
  const Given* experts = recipe.flags.find("num-experts");
  if (experts && experts->values != std::vector<std::string>{"1"})
    refuse({{experts->place, fmt::format("{}: {}", experts->text(), kNoExperts)}});
}

/// The flags that follow the command, but are no part of it.
std::vector<Remark> stray_remarks(const shell::Run& run) {
  std::vector<Remark> remarks;
  for (const shell::RunCommand& flag : stray_flags(run))
    remarks.push_back({fmt::format("{}:{}", flag.file, flag.line),
                       shell::shown(fmt::format(
                           "{} is not part of the command: the line before it does not end in '\\'",
                           fmt::join(flag.words, " ")))});
  return remarks;
}

Recipe read_recipe(const Request& request, const shell::Run& run, std::string& hosts) {
  const std::string file = request.file.empty() ? request.words_of : request.file.string();
  TrainingCommand command = find_training_command(run, file, request.line);
  expand_hostfile(command.launcher, request.file.parent_path());
  hosts = hosts_of(command.launcher);
  Recipe recipe{.place = command.place,
                .program = command.program.empty() ? "pretrain_gpt.py" : command.program};
  recipe.ranks =
      request.ranks ? Ranks{*request.ranks, "--ranks"} : count_ranks(command.launcher, run.sbatch);
  if (const std::string unknown = unknown_ranks(command.launcher);
      !recipe.ranks && !unknown.empty())
    recipe.draft.note(command.place,
                      fmt::format("the number of ranks is not known: {}; give --define NAME=VALUE, "
                                  "or --ranks N",
                                  unknown));
  Parsed parsed = parse_flags(command.flags, command.place, request.ignored);
  take_remarks(recipe, parsed);
  std::set<std::string> unseen = request.ignored;
  const auto see = [&](const Parsed& of) {
    std::erase_if(unseen, [&](const std::string& name) { return of.ignored.contains(name); });
  };
  see(parsed);
  recipe.flags = std::move(parsed.arguments);
  refuse_other_networks(recipe);
  for (const Remark& flag : stray_remarks(run)) recipe.draft.note(flag.place, flag.message);
  recipe.deepspeed = recipe.flags.has("deepspeed");
  const Given* given = recipe.flags.find("deepspeed-config");
  if (!given && !request.ds_config.empty())
    throw UsageError("--ds-config: the command line has no --deepspeed_config");
  if (given) {
    const Configuration configuration = find_configuration(request, run, *given);
    Parsed json = parse_json(configuration.text, configuration.name, request.ignored);
    take_remarks(recipe, json);
    see(json);
    recipe.json = std::move(json.arguments);
    if (!recipe.deepspeed)
      recipe.draft.note(command.place,
                        fmt::format("{} has no effect without --deepspeed", configuration.name));
  }
  for (const std::string& name : unseen)
    recipe.draft.note(command.place,
                      fmt::format("--ignore {} has no effect: there is no such flag or key", name));
  return recipe;
}

std::vector<std::string> title_of(Recipe& recipe) {
  std::vector<std::string> lines{fmt::format("Made by trireme-convert from {}.", recipe.place)};
  if (recipe.ranks && recipe.data())
    lines.push_back(
        fmt::format("Its ranks: {} = tensor {} x pipeline {} x data {}; the deck runs on other "
                    "numbers too.",
                    recipe.ranks->count, recipe.tensor(), recipe.pipeline(), *recipe.data()));
  return lines;
}

/// Throws DataError if `deck` cannot be parsed: a recipe may contain values that no deck can.
void check_readable(const std::string& deck, const std::string& place) {
  deck::Problems problems(place, {});
  deck::read_yaml(deck, 0, problems);
  try {
    problems.raise_if_any();
  } catch (const DeckError& error) {
    throw DataError("'{}' gives a deck that cannot be parsed: {}", shell::shown(place),
                    error.what());
  }
}

/// Trireme's commands for a recipe that does not train; empty if it trains or runs no known
/// program.
std::optional<Result> convert_tools(const shell::Run& run) {
  Result result;
  for (const TrainingCommand& command : commands_without_training(run)) {
    const auto equivalent = equivalent_of(command);
    if (!equivalent) {
      result.notes.push_back(shell::shown(
          fmt::format("{}: {} is ignored: it has no counterpart, or its flags are unknown",
                      command.place, command.program)));
      continue;
    }
    result.commands += equivalent->commands;
    for (const std::string& note : equivalent->notes) result.notes.push_back(shell::shown(note));
    for (const std::string& key : equivalent->unbuilt) result.unbuilt.push_back(key);
  }
  return result.commands.empty() ? std::nullopt : std::optional(result);
}

}  // namespace

Result convert(const Request& request) {
  const shell::Run run = read_script(request);
  if (const auto commands = convert_tools(run)) return *commands;
  std::string hosts;
  Recipe recipe = read_recipe(request, run, hosts);
  apply_rows(recipe, recipe.flags);
  if (recipe.deepspeed) apply_rows(recipe, recipe.json);
  apply_rules(recipe);
  recipe.draft.check_deck(recipe.place, recipe.data() ? recipe.ranks->count : 0);
  if (!recipe.draft.errors().empty()) refuse(recipe.draft.errors(), stray_remarks(run));
  Result result{.deck = recipe.draft.render(title_of(recipe)), .unbuilt = recipe.draft.unbuilt()};
  result.hosts = std::move(hosts);
  check_readable(result.deck, recipe.place);
  for (const Remark& remark : recipe.draft.notes())
    result.notes.push_back(fmt::format("{}: {}", remark.place, remark.message));
  return result;
}

std::string describe_flags() {
  std::string text;
  for (const Flag& flag : command_flags()) {
    const std::string fate = flag.fate == Fate::dropped   ? fmt::format("ignored: {}", flag.note)
                             : flag.fate == Fate::refused ? fmt::format("refused: {}", flag.note)
                             : flag.key.empty()           ? "checked"
                             : flag.word.empty()
                                 ? std::string(flag.key)
                                 : fmt::format("{}: {}{}", flag.key,
                                               flag.takes == Takes::nothing ? "" : "N ", flag.word);
    text += fmt::format("--{:<42} {}\n", flag.name, fate);
  }
  return text;
}

// ---- the deck

namespace {

// The column of comments after shorter values.
constexpr int kCommentColumn = 36;

/// `text` as part of a comment or message: marks as their source, one line of UTF-8.
std::string one_line(std::string_view text) {
  std::string line = shell::shown(text);
  if (!deck::is_plain_line(line))
    std::replace_if(
        line.begin(), line.end(), [](unsigned char c) { return c >= 0x7F; }, '?');
  return line;
}

/// Whether the feature of `key` is implemented for this value.
bool is_built(const deck::Key& key, const deck::Item& item) {
  if (!key.has_member()) return false;
  return key.built.empty() ||
         std::find(key.built.begin(), key.built.end(), item.text) != key.built.end();
}

/// The indented last name of `path`, after the headings of sections that `before` is not in.
std::string heading(std::string_view path, std::string_view before) {
  std::string text;
  int depth = 0;
  for (std::size_t end = path.find('.'); end != std::string_view::npos;
       end = path.find('.', end + 1), ++depth) {
    const std::string_view section = path.substr(0, end + 1);
    if (before.starts_with(section)) continue;
    if (depth == 0 && !before.empty()) text += "\n";
    const std::size_t dot = path.rfind('.', end - 1);
    const std::size_t begin = dot == std::string_view::npos ? 0 : dot + 1;
    text += fmt::format("{:{}}{}:\n", "", 2 * depth, path.substr(begin, end - begin));
  }
  return text + fmt::format("{:{}}{}", "", 2 * depth, path.substr(path.rfind('.') + 1));
}

}  // namespace

void Draft::set(std::string_view key, const std::string& yaml, const Given& given) {
  put(key, yaml, given.text(), given.place);
}

void Draft::set(std::string_view key, const std::string& yaml, const std::string& why) {
  put(key, yaml, why, why);
}

void Draft::put(std::string_view key, const std::string& yaml, const std::string& origin,
                const std::string& place) {
  const deck::Key* row = deck::find_key(key);
  TRIREME_CHECK(row != nullptr, "'{}' is no key of the deck", key);
  if (!deck::is_plain_line(yaml)) {
    error(place, fmt::format("{}: {} cannot have this value: it is not one line of UTF-8 text",
                             origin, key));
    return;
  }
  deck::Problems ignored("", {});
  const deck::Item item = deck::read_yaml(yaml, 0, ignored);
  const bool built = is_built(*row, item);
  const bool readable = row->has_member() && (built || item.kind == deck::Item::Kind::scalar);
  if (readable) {
    try {
      deck::Deck scratch;
      row->read(scratch, item, row->rules);
    } catch (const deck::BadValue& problem) {
      error(place, fmt::format("{}: {} = {}: {}", origin, key, deck::found(item), problem.what()));
      return;
    }
  }
  settings_[std::string(key)] = {yaml, origin, built};
}

void Draft::leave_out(const Given& given, std::string_view reason) {
  left_out_.push_back({one_line(given.text()), std::string(reason)});
}

void Draft::error(const std::string& place, std::string message) {
  message = one_line(message);
  const bool told = std::any_of(errors_.begin(), errors_.end(), [&](const Remark& other) {
    return other.place == place && other.message == message;
  });
  if (!told) errors_.push_back({place, std::move(message)});
}

void Draft::error(const Given& given, std::string_view message) {
  error(given.place, fmt::format("{}: {}", one_line(given.text()), message));
}

void Draft::note(const std::string& place, std::string message) {
  notes_.push_back({one_line(place), one_line(message)});
}

void Draft::check_deck(const std::string& place, std::int64_t ranks) {
  // The tokenizer determines the size of the vocabulary; its files may be elsewhere.
  std::vector<std::string> overrides;
  if (!has("model.vocab")) overrides.push_back("model.vocab=1");
  try {
    deck::Deck deck = deck::parse(body(/*with_unbuilt=*/false), "", overrides,
                                  {.need_data = false, .automatic = deck::Device::cuda});
    if (ranks > 0) deck::resolve_world_size(deck, ranks);
  } catch (const deck::InvalidDeck& invalid) {
    // A key may be missing because its flag is already reported.
    const bool may_miss = !errors_.empty();
    for (const deck::InvalidDeck::Line& line : invalid.lines())
      if (!may_miss || !line.missing) error(place, line.message);
  }
}

std::vector<std::string> Draft::unbuilt() const {
  std::vector<std::string> lines;
  for (const deck::Key& key : deck::keys()) {
    const auto found = settings_.find(key.path);
    if (found != settings_.end() && !found->second.built)
      lines.push_back(
          fmt::format("{}: {} ({})", key.path, found->second.yaml, one_line(found->second.origin)));
  }
  return lines;
}

std::string Draft::body(bool with_unbuilt) const {
  std::string text;
  std::string_view before;
  for (const deck::Key& key : deck::keys()) {
    const auto found = settings_.find(key.path);
    if (found == settings_.end() || (!found->second.built && !with_unbuilt)) continue;
    const Setting& setting = found->second;
    text += heading(key.path, before);
    const std::size_t line = text.rfind('\n') + 1;
    text += ": " + setting.yaml;
    const auto width = static_cast<int>(text.size() - line);
    text += fmt::format("{:{}}  # {}{}\n", "", std::max(kCommentColumn - width, 0),
                        one_line(setting.origin), setting.built ? "" : "; not built yet");
    before = key.path;
  }
  return text;
}

std::string Draft::render(const std::vector<std::string>& title) const {
  std::string text;
  for (const std::string& line : title) text += fmt::format("# {}\n", one_line(line));
  text += '\n';
  text += body(/*with_unbuilt=*/true);
  if (!left_out_.empty()) text += "\n# Ignored:\n";
  for (const Remark& remark : left_out_)
    text += fmt::format("#   {}: {}\n", remark.place, remark.message);
  if (!notes_.empty()) text += "\n# Notes:\n";
  for (const Remark& remark : notes_) text += fmt::format("#   {}\n", remark.message);
  return text;
}

}  // namespace trireme::convert::flags
