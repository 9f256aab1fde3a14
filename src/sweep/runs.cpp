// The runs of a sweep: their decks, how they are started, and their state.
#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <optional>
#include <string>
#include <vector>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "core/system/process.hpp"
#include "deck/load.hpp"
#include "deck/value.hpp"
#include "plan/run_plan.hpp"
#include "plan/setup.hpp"
#include "sweep/sweep.hpp"
#include "train/startup/startup.hpp"

namespace trireme::sweep {
namespace {

/// The errors of all runs, each with the runs that have it.
class ErrorList {
 public:
  void add(const std::string& line, const std::string& run) {
    const auto same = [&](const Error& error) { return error.line == line; };
    auto error = std::find_if(errors_.begin(), errors_.end(), same);
    if (error == errors_.end()) error = errors_.insert(error, {line, {}});
    error->runs.push_back(run);
  }

  /// Throws DeckError if there is any.
  void raise_if_any(std::size_t num_runs) const {
    if (errors_.empty()) return;
    std::vector<deck::InvalidDeck::Line> lines;
    for (const auto& [line, runs] : errors_) {
      std::string text = line;
      if (runs.size() < num_runs)
        text += runs.size() == 1 ? fmt::format(" (run '{}')", runs[0])
                                 : fmt::format(" (run '{}' and {} more)", runs[0], runs.size() - 1);
      lines.push_back({text, 0, text});
    }
    throw deck::InvalidDeck(std::move(lines));
  }

 private:
  struct Error {
    std::string line;
    std::vector<std::string> runs;
  };
  std::vector<Error> errors_;
};

/// The overrides that make a run's deck of the sweep's.
std::vector<std::string> overrides_of(const deck::Sweep& sweep, const deck::SweepRun& run) {
  std::vector<std::string> overrides{"sweep="};
  overrides.insert(overrides.end(), sweep.overrides.begin(), sweep.overrides.end());
  for (const deck::SweptValue& value : run.values) overrides.push_back(value.as_override());
  return overrides;
}

/// The errors of a run's deck. Those of an override that the sweep made name its place in the
/// sweep.
void add_errors(const deck::InvalidDeck& invalid, const deck::Sweep& sweep,
                const deck::SweepRun& run, ErrorList& errors) {
  const std::size_t first = overrides_of(sweep, run).size() - run.values.size();
  for (const deck::InvalidDeck::Line& line : invalid.lines()) {
    const auto override_number = static_cast<std::size_t>(line.source);  // from 1
    errors.add(
        override_number > first
            ? fmt::format("{}: {}", run.values[override_number - first - 1].where, line.message)
            : line.text,
        run.name);
  }
}

/// Whether `path` lies in the folder of a run before `run`: then it may be there only later.
bool is_of_earlier_run(const PlannedSweep& sweep, const PlannedRun& run,
                       const std::filesystem::path& path) {
  const auto normal = [](const std::filesystem::path& any) {
    return std::filesystem::absolute(any).lexically_normal();
  };
  for (const deck::SweepRun& earlier : sweep.section.runs) {
    if (earlier.name == run.name()) return false;
    const auto folder = normal(run.folder.parent_path() / earlier.name);
    const auto inside = normal(path).lexically_relative(folder);
    if (!inside.empty() && *inside.begin() != "..") return true;
  }
  return false;
}

/// Throws where the run would start from checkpoint.load and could not.
void check_load(const PlannedSweep& sweep, const PlannedRun& run) {
  const auto& load = run.deck.checkpoint.load;
  const bool resumes = std::filesystem::exists(train::checkpoint_folder(run.deck) / "latest");
  if (load && !resumes && !is_of_earlier_run(sweep, run, *load))
    train::check_restart(run.deck, "latest");
}

PlannedRun plan_one(const PlannedSweep& sweep, const deck::SweepRun& swept,
                    const CheckOptions& options) {
  PlannedRun run{.swept = swept};
  run.deck = run_deck(sweep, swept, train::automatic_device(), options.to_run);
  run.folder = run.deck.run.output;
  const plan::Vocabulary vocabulary = plan::vocabulary(run.deck);
  const plan::RunPlan plan = plan::plan_run(run.deck, vocabulary.size);
  run.need = {.ranks = plan.layout.ranks(),
              .bytes = plan.largest().memory.total(),
              .on_gpus = run.deck.run.device == deck::Device::cuda};
  if (options.memory) {
    const plan::Verdict verdict =
        plan::judge(run.deck, vocabulary.size, plan, options.memory(run.deck));
    if (verdict.fits == false) throw DeckError("{}", verdict.text);
  }
  if (options.machine) run.unfit = why_unfit(*options.machine, run.need, options.max_ranks);
  if (run.unfit || !options.to_run) return run;
  check_load(sweep, run);
  train::describe_data(run.deck, vocabulary);
  train::check_datasets(run.deck, vocabulary, data::TokenScan::sample);
  refuse_other_run(sweep, run);
  return run;
}

}  // namespace

deck::Deck run_deck(const PlannedSweep& sweep, const deck::SweepRun& run, deck::Device automatic,
                    bool need_data) {
  deck::Deck deck =
      deck::parse(sweep.deck_text, sweep.deck_path.string(), overrides_of(sweep.section, run),
                  {.need_data = need_data, .automatic = automatic});
  deck.run.output = (std::filesystem::path(deck.run.output) / run.name).string();
  const std::int64_t model_ranks = deck.parallel.tensor * deck.parallel.pipeline;
  const auto& data = deck.parallel.data;
  deck::resolve_world_size(deck,
                           data ? model_ranks * *data : sweep.section.ranks.value_or(model_ranks));
  return deck;
}

PlannedSweep plan_sweep(const std::filesystem::path& deck_path,
                        const std::vector<std::string>& overrides, const CheckOptions& options) {
  PlannedSweep sweep{.deck_path = deck_path, .deck_text = deck::read_deck(deck_path)};
  sweep.section = deck::expand_sweep(sweep.deck_text, deck_path.string(), overrides);
  ErrorList errors;
  for (const deck::SweepRun& run : sweep.section.runs) {
    try {
      sweep.runs.push_back(plan_one(sweep, run, options));
    } catch (const deck::InvalidDeck& error) {
      add_errors(error, sweep.section, run, errors);
    } catch (const Error& error) {
      if (error.code() == ExitCode::internal || error.code() == ExitCode::usage) throw;
      errors.add(fmt::format("{}: {}", deck_path.string(), error.what()), run.name);
    }
  }
  errors.raise_if_any(sweep.section.runs.size());
  sweep.folder = sweep.runs.front().folder.parent_path();  // no run sets run.output or run.name
  return sweep;
}

namespace {

constexpr std::string_view kRanks = "{ranks}";

std::vector<std::string> launcher_words(const Launch& launch, int ranks) {
  if (ranks == 1 && launch.alone_on_one_rank) return {};
  std::vector<std::string> words;
  std::string text = launch.launcher;
  for (std::size_t at; (at = text.find(kRanks)) != std::string::npos;)
    text.replace(at, kRanks.size(), std::to_string(ranks));
  return words_of(text);
}

}  // namespace

void check_launch(const PlannedSweep& sweep, const Launch& launch) {
  if (launch.launcher.find(kRanks) != std::string::npos) return;
  for (const PlannedRun& run : sweep.runs)
    if (run.need.ranks > 1)
      throw deck::InvalidDeck(fmt::format(
          "sweep.launcher = {}: nothing says how many ranks to start; write {} where the number "
          "goes, as in '{}'",
          launch.launcher, kRanks, kMpirun));
}

std::filesystem::path deck_copy(const PlannedSweep& sweep) {
  return sweep.own_folder() / sweep.deck_path.filename();
}

std::vector<std::string> run_words(const PlannedSweep& sweep, const PlannedRun& run,
                                   const Launch& launch) {
  std::vector<std::string> words = launcher_words(launch, run.need.ranks);
  words.push_back(launch.program.string());
  words.push_back(launch.deck.string());
  words.push_back("sweep=");
  for (const std::string& each : sweep.section.overrides)
    if (!each.starts_with("run.output=")) words.push_back(each);
  for (const deck::SweptValue& value : run.swept.values) words.push_back(value.as_override());
  words.push_back(deck::text_override("run.output", run.folder.string()));
  return words;
}

std::vector<std::string> words_of(std::string_view line) {
  std::vector<std::string> words;
  bool inside = false;  // of a word
  char quote = '\0';
  for (const char c : line) {
    if (quote == '\0' && (c == ' ' || c == '\t' || c == '\n')) {
      inside = false;
      continue;
    }
    if (!inside) words.emplace_back();
    inside = true;
    if (c == quote)
      quote = '\0';
    else if (quote == '\0' && (c == '"' || c == '\''))
      quote = c;
    else
      words.back() += c;
  }
  return words;
}

std::string shell_line(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) {
    if (!line.empty()) line += ' ';
    line += shell_word(word);
  }
  return line;
}

// ---- their state

namespace {

namespace fs = std::filesystem;

/// What the run's deck says otherwise than the deck that its folder was trained with, as far as a
/// restart has to say something about it. The kind of device is no part of what was asked: a run on
/// GPUs is not changed by looking at it from a machine that has none, where defaults differ.
std::vector<deck::Change> changes_of(const PlannedSweep& sweep, const PlannedRun& run) {
  const fs::path path = run.folder / "deck.yaml";
  if (!fs::exists(path)) return {};
  const deck::Deck before =
      deck::parse(deck::read_deck(path), path.string(), {}, {.need_data = false});
  const bool elsewhere = before.run.device != run.deck.run.device;
  auto changes = deck::compare_for_restart(
      before,
      elsewhere ? run_deck(sweep, run.swept, before.run.device, /*need_data=*/false) : run.deck);
  std::erase_if(changes, [](const deck::Change& change) {
    return change.rule == deck::RestartRule::free || change.key == "run.device";
  });
  return changes;
}

/// The exit code that the launcher left, unless the run was started otherwise since.
std::optional<int> launcher_code(const PlannedSweep& sweep, const PlannedRun& run) {
  const fs::path path = exit_code_path(sweep, run);
  std::error_code error;
  const auto written = fs::last_write_time(path, error);
  if (error) return std::nullopt;
  const auto metrics = fs::last_write_time(run.folder / "metrics.jsonl", error);
  if (!error && metrics > written) return std::nullopt;
  const std::string text = read_file(path);
  int code = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), code);
  return read.ec == std::errc() ? std::optional(code) : std::nullopt;
}

bool is_early(int code) { return code == static_cast<int>(ExitCode::stopped_early); }

}  // namespace

const char* name_of(State state) {
  switch (state) {
    case State::waiting:
      return "waiting";
    case State::queued:
      return "queued";
    case State::running:
      return "running";
    case State::stopped:
      return "stopped";
    case State::killed:
      return "killed";
    case State::diverged:
      return "diverged";
    case State::failed:
      return "failed";
    case State::changed:
      return "changed";
    case State::finished:
      return "finished";
    case State::too_large:
      return "too large";
  }
  return "";
}

bool is_to_do(State state) {
  switch (state) {
    case State::waiting:
    case State::running:
    case State::stopped:
    case State::killed:
    case State::failed:
    case State::changed:
      return true;
    case State::queued:
    case State::diverged:
    case State::finished:
    case State::too_large:
      break;
  }
  return false;
}

Status status_of(const PlannedSweep& sweep, std::size_t index, const Queue& queue) {
  const PlannedRun& run = sweep.runs[index];
  Status status{.figures = read_figures(run.folder)};
  const auto is = [&](State state, const std::string& note = "") {
    status.state = state;
    status.note = note;
    return status;
  };
  if (is_in_use(run.folder)) return is(State::running);
  if (const auto task = queue.find(static_cast<int>(index) + 1); task != queue.end())
    return is(task->second);
  const std::optional<int> code = launcher_code(sweep, run);
  const std::optional<int> stop = status.figures.exit_code;
  const auto ended_with = [&](ExitCode exit) {
    return code.value_or(stop.value_or(-1)) == static_cast<int>(exit);
  };
  const bool diverged = ended_with(ExitCode::diverged);
  if (code && *code != 0 && !is_early(*code) && !diverged)
    return is(State::failed, fmt::format("exit code {}", *code));
  if ((stop == 0 && status.figures.finished) || diverged) {
    std::vector<std::string> changes;
    for (const deck::Change& change : changes_of(sweep, run))
      changes.push_back(fmt::format("{} was {}", change.key, change.before));
    return changes.empty() ? is(diverged ? State::diverged : State::finished)
                           : is(State::changed, fmt::format("{}", fmt::join(changes, ", ")));
  }
  if (run.unfit) return is(State::too_large, *run.unfit);
  if (stop == 0) return is(State::stopped);  // the deck or a person asked for it
  if (stop) return is_early(*stop) ? is(State::stopped) : is(State::failed);
  if (status.figures.started || fs::exists(output_path(sweep, run))) return is(State::killed);
  return is(State::waiting);
}

void refuse_other_run(const PlannedSweep& sweep, const PlannedRun& run) {
  if (!fs::exists(run.folder / "checkpoints" / "latest")) return;
  std::vector<deck::Change> changes = changes_of(sweep, run);
  for (const deck::Change& change : changes)
    if (change.rule == deck::RestartRule::immutable)
      throw deck::InvalidDeck(fmt::format(
          "{}: trained with {} = {}, which is {} now; move the folder away to train afresh",
          run.folder.string(), change.key, change.before, change.after));
  // How a finished run was computed may differ from how the others are.
  std::erase_if(changes, [](const deck::Change& change) {
    return change.key == "batch.micro" || change.key.starts_with("parallel.") ||
           change.key.starts_with("recompute.") || change.key.starts_with("comm.");
  });
  if (changes.empty()) return;
  // It would end immediately, and its old losses would stand under the new keys.
  const deck::Progress trained = train::check_restart(run.deck, "latest").progress;
  if (trained.iteration < deck::end_of_run(run.deck, trained).iteration) return;
  std::vector<std::string> keys;
  for (const deck::Change& change : changes)
    keys.push_back(fmt::format("{} = {} ({} now)", change.key, change.before, change.after));
  throw deck::InvalidDeck(fmt::format(
      "{}: nothing is left to train after iteration {}, which was trained with {}; choose another "
      "run.output, or move the folder away to train afresh",
      run.folder.string(), trained.iteration, fmt::join(keys, ", ")));
}

bool is_in_use(const fs::path& run_folder) {
  // The trainer holds this lock exclusively for as long as it lives, and tries again for a moment
  // when it meets this question.
  const int fd = ::open((run_folder / ".lock").c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool in_use = ::flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(fd);
  return in_use;
}

fs::path output_path(const PlannedSweep& sweep, const PlannedRun& run) {
  return sweep.own_folder() / (run.name() + ".out");
}

fs::path exit_code_path(const PlannedSweep& sweep, const PlannedRun& run) {
  return sweep.own_folder() / (run.name() + ".exit");
}

}  // namespace trireme::sweep
