#include "sweep/check.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "deck/document.hpp"
#include "deck/load.hpp"
#include "deck/problems.hpp"
#include "plan/run_plan.hpp"
#include "plan/setup.hpp"
#include "sweep/state.hpp"
#include "train/startup/datasets.hpp"
#include "train/startup/devices.hpp"
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
    std::string text;
    for (const auto& [line, runs] : errors_) {
      text += line;
      if (runs.size() < num_runs)
        text += runs.size() == 1 ? fmt::format(" (run '{}')", runs[0])
                                 : fmt::format(" (run '{}' and {} more)", runs[0], runs.size() - 1);
      text += "\n";
    }
    throw DeckError("{}{}", text, deck::closing_line(errors_.size()));
  }

 private:
  struct Error {
    std::string line;
    std::vector<std::string> runs;
  };
  std::vector<Error> errors_;
};

/// The lines of a DeckError without the closing one, which an error alone has not. What it says of
/// an override that the sweep made it says of the place in the sweep.
void add_lines(const std::string& text, const deck::SweepRun& run, const std::string& deck_path,
               ErrorList& errors) {
  if (text.find('\n') == std::string::npos) {
    errors.add(fmt::format("{}: {}", deck_path, text), run.name);
    return;
  }
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) return;  // the closing line
    std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    for (const deck::SweptValue& value : run.values) {
      const std::string prefix = fmt::format("--set {}: ", deck::printable(value.as_override()));
      if (line.starts_with(prefix)) {
        line = fmt::format("{}: {}", value.where, line.substr(prefix.size()));
        break;
      }
    }
    errors.add(line, run.name);
  }
}

/// The overrides that make a run's deck of the sweep's.
std::vector<std::string> overrides_of(const deck::Sweep& sweep, const deck::SweepRun& run) {
  std::vector<std::string> overrides{"sweep="};
  overrides.insert(overrides.end(), sweep.overrides.begin(), sweep.overrides.end());
  for (const deck::SweptValue& value : run.values) overrides.push_back(value.as_override());
  return overrides;
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
    } catch (const DeckError& error) {
      add_lines(error.what(), run, deck_path.string(), errors);
    } catch (const Error& error) {
      if (error.code() == ExitCode::internal) throw;
      errors.add(fmt::format("{}: {}", deck_path.string(), error.what()), run.name);
    }
  }
  errors.raise_if_any(sweep.section.runs.size());
  sweep.folder = sweep.runs.front().folder.parent_path();  // no run sets run.output or run.name
  return sweep;
}

}  // namespace trireme::sweep
