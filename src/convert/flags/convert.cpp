#include "convert/convert.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <system_error>

#include "convert/flags/recipe.hpp"
#include "convert/shell/script.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "deck/value.hpp"

namespace trireme::convert::flags {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCommandLine = "command line";

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
  return {.commands = {{request.words, kCommandLine, 0}}};
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
  const std::string file = request.file.empty() ? kCommandLine : request.file.string();
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
    recipe.json = std::move(json.arguments);
    if (!recipe.deepspeed)
      recipe.draft.note(command.place,
                        fmt::format("{} has no effect without --deepspeed", configuration.name));
  }
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

}  // namespace trireme::convert::flags
