#include "sweep/sweep.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "core/system/process.hpp"
#include "deck/load.hpp"
#include "deck/value.hpp"
#include "plan/run_plan.hpp"
#include "plan/setup.hpp"
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
      if (error.code() == ExitCode::internal) throw;
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

}  // namespace trireme::sweep
