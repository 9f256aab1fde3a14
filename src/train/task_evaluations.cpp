#include "train/task_evaluations.hpp"

#include <algorithm>
#include <filesystem>

#include "core/error.hpp"
#include "core/text.hpp"
#include "plan/setup.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::train {
namespace {

/// Calls `visit(task of the deck, its file tokenized)` for each of the deck's tasks.
template <typename Visit>
void for_each_task(const deck::Deck& deck, Visit&& visit) {
  if (deck.evaluate.tasks.empty()) return;
  const auto spec = plan::tokenizer_spec(deck);
  TRIREME_CHECK(spec, "evaluate.tasks without a tokenizer");
  const auto tokenizer = tokenizer::make_tokenizer(*spec);
  for (const deck::EvaluationTask& task : deck.evaluate.tasks)
    visit(task, evaluate::make_task({.name = task.name, .file = task.file}, *tokenizer,
                                    deck.model.sequence));
}

}  // namespace

TaskScore score_task(const evaluate::Task& task, StageRunner& runner, comm::Groups& groups,
                     const std::function<void(std::int64_t)>& progress) {
  const auto scores = task.scores();
  if (scores)
    runner.observe_scores(
        [&](const data::Batch& batch, std::int64_t first, const evaluate::ScoredTokens& tokens) {
          scores->add(batch, first, tokens);
        });
  TaskScore score{.sum = runner.evaluate_all(task.dataset(), progress)};
  runner.observe_scores({});
  if (scores)
    scores->combine([&](double* values, std::size_t count) {
      groups.world->all_reduce(values, count, DType::f64, comm::Reduce::max);
    });
  score.metrics = task.result({score.sum.loss, score.sum.tokens}, scores.get());
  return score;
}

TaskEvaluations::TaskEvaluations(const deck::Deck& deck, comm::Groups& groups) : groups_(groups) {
  const auto& all = deck.evaluate.tasks;
  for_each_task(deck, [&](const deck::EvaluationTask& task, auto read) {
    const auto same_name = std::ranges::count(all, task.name, &deck::EvaluationTask::name);
    const std::string stem = std::filesystem::path(task.file).stem().string();
    tasks_.push_back({.label = same_name > 1 ? task.name + "/" + stem : task.name,
                      .every = task.every ? task.every : deck.evaluate.every,
                      .task = std::move(read)});
  });
}

std::vector<std::pair<std::string, double>> TaskEvaluations::evaluate(std::size_t i,
                                                                      StageRunner& runner) {
  std::vector<std::pair<std::string, double>> metrics;
  for (const auto& [name, value] : score_task(*tasks_[i].task, runner, groups_).metrics)
    metrics.emplace_back(
        name, std::visit([](auto number) { return static_cast<double>(number); }, value));
  return metrics;
}

std::vector<std::string> check_tasks(const deck::Deck& deck) {
  std::vector<std::string> notes;
  for_each_task(deck, [&](const deck::EvaluationTask& task, const auto& read) {
    notes.push_back(fmt::format("{}: {} of '{}'", task.name,
                                counted(read->dataset().samples(), "sample"), task.file));
  });
  return notes;
}

}  // namespace trireme::train
