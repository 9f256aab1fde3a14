// What a run evaluates while it trains and at its end: the validation and test splits, and tasks on
// texts (evaluate.tasks).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/mpi/mpi_communicator.hpp"
#include "deck/batch_sizes.hpp"
#include "deck/deck.hpp"
#include "evaluate/tasks.hpp"
#include "report/reporter.hpp"
#include "train/run_state.hpp"
#include "train/stage_runner.hpp"
#include "train/training_log.hpp"

namespace trireme::train {

/// Scores a task with the weights of `runner`, each sample once on any layout. `progress` gets the
/// number of samples done. Collective over all ranks, which return the same.
struct TaskScore {
  LossSum sum;
  std::vector<evaluate::Metric> metrics;
};
TaskScore score_task(const evaluate::Task& task, StageRunner& runner, comm::Groups& groups,
                     const std::function<void(std::int64_t)>& progress = {});

/// The deck's tasks, their files tokenized.
class TaskEvaluations {
 public:
  /// Reads the files, on every rank. Throws as evaluate::make_task(), naming evaluate.tasks.
  TaskEvaluations(const deck::Deck& deck, comm::Groups& groups);

  std::size_t size() const { return tasks_.size(); }
  /// What logs call the task: as evaluate::task_labels().
  const std::string& label(std::size_t i) const { return tasks_[i].label; }
  const std::optional<deck::Length>& every(std::size_t i) const { return tasks_[i].every; }
  /// The metrics of task `i`, the most important first; `progress` as of score_task(). Collective
  /// over all ranks.
  std::vector<std::pair<std::string, double>> evaluate(
      std::size_t i, StageRunner& runner, const std::function<void(std::int64_t)>& progress = {});

 private:
  struct Entry {
    std::string label;
    std::optional<deck::Length> every;
    std::unique_ptr<const evaluate::Task> task;
  };
  comm::Groups& groups_;
  std::vector<Entry> tasks_;
};

/// The evaluations of a run, all collective over its ranks.
class Evaluations {
 public:
  /// Reads the tasks' files. `sampler` is that of batch.global, `reporter` null but on rank 0. All
  /// must outlive this. Throws as TaskEvaluations.
  Evaluations(const deck::Deck& deck, const deck::BatchSizes& batches, const data::Sampler& sampler,
              comm::Groups& groups, StageRunner& runner, TrainingLog& log,
              report::Reporter* reporter);
  /// Adds the dataset of a split that the deck evaluates: `valid` or `test`.
  void add(data::Split split, std::unique_ptr<const data::Dataset> dataset);

  /// Calls `visit` after each batch that is evaluated, on all ranks.
  void after_each_batch(std::function<void()> visit) { after_batch_ = std::move(visit); }
  /// Runs those that are due after the iteration that took the run from `before` to `state`.
  void run_due(const RunState& state, const deck::Progress& before);
  /// Runs those at the end of the run, without those that were just due. False where a loss is not
  /// finite.
  bool run_at_end(const RunState& state, const deck::Progress& before);

 private:
  /// How many evaluations of the validation split have been due so far.
  std::int64_t count(const RunState& state) const;
  /// Evaluates on the evaluate.iterations batches that follow on those of `earlier` evaluations;
  /// returns the loss, and warns where it is not finite.
  double run(const RunState& state, data::Split split, const data::Dataset& dataset,
             std::int64_t earlier, bool at_end);
  void run_tasks(const RunState& state, const deck::Progress& before, bool at_end);

  const deck::Deck& deck_;
  const deck::BatchSizes& batches_;
  const data::Sampler& sampler_;
  StageRunner& runner_;
  TrainingLog& log_;
  report::Reporter* reporter_;
  TaskEvaluations tasks_;
  std::function<void()> after_batch_ = [] {};
  std::unique_ptr<const data::Dataset> valid_, test_;  ///< null: not evaluated
  std::shared_ptr<comm::Watchdog> watchdog_ = comm::Watchdog::shared();
};

/// Reads the files of the deck's tasks and returns a line for each. Throws as TaskEvaluations.
std::vector<std::string> check_tasks(const deck::Deck& deck);

}  // namespace trireme::train
