// The tasks on texts that a run evaluates while it trains (evaluate.tasks).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/mpi/groups.hpp"
#include "deck/deck.hpp"
#include "evaluate/tasks.hpp"
#include "train/stage_runner.hpp"

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
  /// The task's name; where several have it, with that of its file: "blimp/anaphor_number".
  const std::string& label(std::size_t i) const { return tasks_[i].label; }
  const std::optional<deck::Length>& every(std::size_t i) const { return tasks_[i].every; }
  /// The metrics of task `i`, the most important first. Collective over all ranks.
  std::vector<std::pair<std::string, double>> evaluate(std::size_t i, StageRunner& runner);

 private:
  struct Entry {
    std::string label;
    std::optional<deck::Length> every;
    std::unique_ptr<const evaluate::Task> task;
  };
  comm::Groups& groups_;
  std::vector<Entry> tasks_;
};

/// Reads the files of the deck's tasks and returns a line for each. Throws as TaskEvaluations.
std::vector<std::string> check_tasks(const deck::Deck& deck);

}  // namespace trireme::train
