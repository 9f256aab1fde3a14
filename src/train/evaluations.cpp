#include "train/evaluations.hpp"

#include <cmath>

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
  std::vector<evaluate::TaskSpec> specs;
  for (const deck::EvaluationTask& task : deck.evaluate.tasks)
    specs.push_back({.name = task.name, .file = task.file});
  const std::vector<std::string> labels = evaluate::task_labels(specs);
  for_each_task(deck, [&](const deck::EvaluationTask& task, auto read) {
    tasks_.push_back({.label = labels[tasks_.size()],
                      .every = task.every ? task.every : deck.evaluate.every,
                      .task = std::move(read)});
  });
}

std::vector<std::pair<std::string, double>> TaskEvaluations::evaluate(
    std::size_t i, StageRunner& runner, const std::function<void(std::int64_t)>& progress) {
  std::vector<std::pair<std::string, double>> metrics;
  for (const auto& [name, value] : score_task(*tasks_[i].task, runner, groups_, progress).metrics)
    metrics.emplace_back(
        name, std::visit([](auto number) { return static_cast<double>(number); }, value));
  return metrics;
}

Evaluations::Evaluations(const deck::Deck& deck, const deck::BatchSizes& batches,
                         const data::Sampler& sampler, comm::Groups& groups, StageRunner& runner,
                         TrainingLog& log, report::Reporter* reporter)
    : deck_(deck),
      batches_(batches),
      sampler_(sampler),
      runner_(runner),
      log_(log),
      reporter_(reporter),
      tasks_(deck, groups) {}

void Evaluations::add(data::Split split, std::unique_ptr<const data::Dataset> dataset) {
  (split == data::Split::valid ? valid_ : test_) = std::move(dataset);
}

// Each evaluation of the validation split takes the samples after those of the one before.

std::int64_t Evaluations::count(const RunState& state) const {
  const auto& every = deck_.evaluate.every;
  return every ? batches_.times_reached(*every, state.progress()) : 0;
}

void Evaluations::run_due(const RunState& state, const deck::Progress& before) {
  const auto& every = deck_.evaluate.every;
  if (valid_ && every && deck::reaches(*every, before, state.progress()))
    run(state, data::Split::valid, *valid_, count(state) - 1, /*at_end=*/false);
  run_tasks(state, before, /*at_end=*/false);
}

bool Evaluations::run_at_end(const RunState& state, const deck::Progress& before) {
  if (!deck_.evaluate.at_end) return true;
  const auto& every = deck_.evaluate.every;
  double loss = 0.0;
  if (valid_ && !(every && deck::reaches(*every, before, state.progress())))
    loss += run(state, data::Split::valid, *valid_, count(state), /*at_end=*/true);
  if (test_) loss += run(state, data::Split::test, *test_, 0, /*at_end=*/true);
  run_tasks(state, before, /*at_end=*/true);
  return std::isfinite(loss);
}

double Evaluations::run(const RunState& state, data::Split split, const data::Dataset& dataset,
                        std::int64_t earlier, bool at_end) {
  watchdog_->set_phase("the evaluation", state.iteration);
  const Stopwatch watch;
  const std::int64_t first_batch = earlier * deck_.evaluate.iterations;
  LossSum sum;
  device::timed(log_.timers(), device::Phase::evaluate, [&] {
    for (std::int64_t i = 0; i < deck_.evaluate.iterations; ++i) {
      sum += runner_.evaluate(dataset, sampler_, (first_batch + i) * deck_.batch.global);
      after_batch_();
    }
  });
  log_.report_timer(device::Phase::evaluate, state.iteration);
  const auto sentences = [&](double figure) {
    return deck_.model.bert.binary_head == true ? std::optional(figure) : std::nullopt;
  };
  if (reporter_)
    reporter_->on(
        report::EvalEvent{.iteration = state.iteration,
                          .consumed_samples = state.consumed_samples,
                          .consumed_tokens = state.consumed_samples * deck_.model.sequence,
                          .split = std::string(data::name_of(split)),
                          .loss = sum.mean(),
                          .sentence_loss = sentences(sum.sentence_mean()),
                          .sentence_accuracy = sentences(sum.sentence_accuracy()),
                          .at_end = at_end});
  if (reporter_ && !std::isfinite(sum.mean()))
    reporter_->on(report::WarningEvent{
        .iteration = state.iteration,
        .message = fmt::format("the loss of the {} split is not finite", data::name_of(split))});
  log_.exclude(watch.seconds());
  return sum.mean();
}

void Evaluations::run_tasks(const RunState& state, const deck::Progress& before, bool at_end) {
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    const auto& every = tasks_.every(i);
    const bool due = every && deck::reaches(*every, before, state.progress());
    if (due == at_end) continue;
    const Stopwatch watch;
    report::TaskEvent event{.iteration = state.iteration,
                            .consumed_samples = state.consumed_samples,
                            .consumed_tokens = state.consumed_samples * deck_.model.sequence,
                            .task = tasks_.label(i)};
    device::timed(log_.timers(), device::Phase::evaluate, [&] {
      event.metrics = tasks_.evaluate(i, runner_, [&](std::int64_t) { after_batch_(); });
    });
    log_.report_timer(device::Phase::evaluate, state.iteration);
    if (reporter_) reporter_->on(event);
    log_.exclude(watch.seconds());
  }
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
