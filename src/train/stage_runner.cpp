#include "train/stage_runner.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "comm/mpi/mpi_communicator.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "plan/setup.hpp"
#include "tokenizer/tokenizer.hpp"
#include "train/verify/step_verifier.hpp"

namespace trireme::train {

LossSum& LossSum::operator+=(const LossSum& other) {
  loss += other.loss;
  tokens += other.tokens;
  sentence_loss += other.sentence_loss;
  sentences += other.sentences;
  correct += other.correct;
  return *this;
}

StageRunner::StageRunner(comm::Groups& groups, device::Backend& backend,
                         const model::StageConfig& config, const model::ParameterStore& parameters,
                         int slots, bool overlap)
    : groups_(groups),
      backend_(backend),
      stage_(config, backend, *groups.tensor, parameters, groups.layout, groups.place.pipeline,
             slots),
      micro_batch_size_(config.micro_batch),
      vocab_(config.spec.vocab),
      slots_(slots),
      overlap_(overlap) {}

void StageRunner::set_observer(PassObserver* observer) {
  observer_ = observer;
  stage_.set_hooks(observer);
}

LossSum StageRunner::train(const data::Dataset& dataset, const data::Sampler& sampler,
                           std::int64_t consumed, const pipeline::StageSchedule& schedule,
                           const data::BatchPrefetcher* prefetcher) {
  prefetcher_ = prefetcher;
  return run(dataset, sampler, consumed, schedule, /*training=*/true);
}

bool StageRunner::reads_tokens() const {
  for (int chunk = 0; chunk < groups_.layout.chunks; ++chunk)
    if (stage_.reads_tokens(chunk)) return true;
  return false;
}

LossSum StageRunner::evaluate(const data::Dataset& dataset, const data::Sampler& sampler,
                              std::int64_t consumed) {
  const auto schedule =
      pipeline::forward_only(groups_.layout.pipeline, groups_.place.pipeline, groups_.layout.chunks,
                             static_cast<int>(sampler.micro_batches()), slots_);
  prefetcher_ = nullptr;
  return run(dataset, sampler, consumed, schedule, /*training=*/false);
}

void StageRunner::check(const data::Dataset& dataset, const data::Sampler& sampler,
                        std::int64_t consumed) {
  if (!reads_tokens()) return;
  const comm::WatchedWork reading = groups_.world->work("reading data");
  for (std::int64_t k = 0; k < sampler.micro_batches(); ++k)
    data::read_micro_batch(dataset, sampler, consumed, k, batch_);
}

LossSum StageRunner::evaluate_all(const data::Dataset& dataset,
                                  const std::function<void(std::int64_t)>& progress) {
  // Eight micro-batches a pass keep every stage of a pipeline busy.
  const std::int64_t block = micro_batch_size_ * groups_.layout.data;
  const std::int64_t blocks = (dataset.samples() + block - 1) / block;
  LossSum sum;
  for (std::int64_t done = 0; done < blocks; done += 8) {
    const data::Sampler sampler{.global_batch = std::min<std::int64_t>(8, blocks - done) * block,
                                .micro_batch = micro_batch_size_,
                                .data_ranks = groups_.layout.data,
                                .data_rank = groups_.place.data,
                                .past_end = true};
    sum += evaluate(dataset, sampler, done * block);
    if (progress) progress(std::min((done + 8) * block, dataset.samples()));
  }
  return sum;
}

LossSum StageRunner::run(const data::Dataset& dataset, const data::Sampler& sampler,
                         std::int64_t consumed, const pipeline::StageSchedule& schedule,
                         bool training) {
  dataset_ = &dataset;
  sampler_ = sampler;
  consumed_ = consumed;
  training_ = training;
  tokens_sum_ = sentences_sum_ = correct_sum_ = 0.0;
  passes_left_.assign(groups_.layout.chunks, sampler.micro_batches());
  stage_.begin_batch();
  pipeline::execute(schedule, *this, *groups_.pipeline, overlap_);

  // The last stage knows the loss, every tensor rank of it the same one.
  const bool counts = stage_.is_last() && groups_.place.tensor == 0;
  double sums[5] = {};
  if (counts) {
    sums[0] = stage_.loss_sum();
    sums[1] = tokens_sum_;
    sums[2] = stage_.sentence_loss_sum();
    sums[3] = sentences_sum_;
    sums[4] = correct_sum_;
  }
  groups_.world->all_reduce(sums, std::size(sums), DType::f64, comm::Reduce::sum);
  return {sums[0], sums[1], sums[2], sums[3], sums[4]};
}

double StageRunner::largest_logit() {
  return groups_.world->all_reduce(stage_.largest_logit(), comm::Reduce::max);
}

template <typename Pass>
void StageRunner::timed_pass(device::Phase phase, const char* name, const pipeline::Step& step,
                             const Pass& pass) {
  const device::NamedRange range({name, step.micro_batch, step.chunk});
  const double before = comm::seconds_in_mpi();
  device::measured(timers(), phase, pass);
  if (timers()) timers()->add(device::Phase::waiting, 1e3 * (comm::seconds_in_mpi() - before));
}

void StageRunner::forward(const pipeline::Step& step) {
  timed_pass(device::Phase::forward, "forward-compute", step, [&] { run_forward(step); });
  if (observer_ && training_) observer_->after_forward(step, stage_.output(step.slot));
}

void StageRunner::run_forward(const pipeline::Step& step) {
  load(step);
  if (!training_) {
    stage_.forward(step.slot, /*training=*/false);
    if (stage_.has_head(step.chunk)) correct_sum_ += count_correct();
    return;
  }
  // The batch's loss is the mean over its micro-batches of their mean over tokens, as in
  // Megatron-LM.
  const double micro_batches = static_cast<double>(sampler_.micro_batches() * sampler_.data_ranks);
  stage_.forward(step.slot, /*training=*/true,
                 model::LossScales(loss_scale_ / (std::max(1.0, tokens_) * micro_batches),
                                   loss_scale_ / (std::max(1.0, sentences_) * micro_batches)));
}

void StageRunner::backward(const pipeline::Step& step, const Tensor& gradient) {
  const bool input_only = step.kind == pipeline::StepKind::input_gradient;
  const char* name = input_only ? "input-gradient" : "backward-compute";
  timed_pass(device::Phase::backward, name, step, [&] {
    if (input_only)
      stage_.backward_input(step.slot, gradient);
    else
      stage_.backward(step.slot, gradient, is_last_pass(step.chunk));
  });
  if (observer_) observer_->after_backward(step, gradient);
}

void StageRunner::weight_gradient(const pipeline::Step& step) {
  timed_pass(device::Phase::backward, "weight-gradient", step,
             [&] { stage_.backward_weights(step.slot, is_last_pass(step.chunk)); });
}

void StageRunner::load(const pipeline::Step& step) {
  micro_batch_ = step.micro_batch;
  model::MicroBatch batch{.first_sample = static_cast<std::uint64_t>(
                              sampler_.first_sample(consumed_, step.micro_batch))};
  if (stage_.reads_tokens(step.chunk)) {
    device::timed(timers(), device::Phase::batch, [&] {
      current_ = &read(step.micro_batch);
      batch.ids = current_->tensor(data::field::kTokens);
      batch.labels = current_->tensor(data::field::kLabels);
      batch.token_types = current_->tensor(data::field::kTokenTypes);
      batch.lengths = current_->tensor(data::field::kLengths);
      batch.sentence_labels = current_->tensor(data::field::kSentenceLabels);
      tokens_ = static_cast<double>(current_->count_labels(data::field::kLabels));
      sentences_ = static_cast<double>(current_->count_labels(data::field::kSentenceLabels));
    });
    if (stage_.has_head(step.chunk)) {
      tokens_sum_ += tokens_;
      sentences_sum_ += sentences_;
    }
  }
  stage_.load(step.slot, batch, step.chunk);
}

void StageRunner::observe_scores(ScoreObserver observer) {
  if (!observer) return stage_.observe_head({});
  stage_.observe_head([this, observer = std::move(observer)](std::int64_t first, const auto& head) {
    show_scores(observer, first, head);
  });
}

void StageRunner::show_scores(const ScoreObserver& observer, std::int64_t first,
                              const model::Head::Activations& head) {
  const std::int64_t count = head.max.size();
  const auto download = [&](const Tensor& tensor) {
    std::vector<std::byte> raw(tensor.bytes());
    backend_.download(raw.data(), tensor.data, raw.size());
    return dispatch(tensor.dtype, [&](auto element) {
      const auto* values = reinterpret_cast<const decltype(element)*>(raw.data());
      return std::vector<double>(values, values + count);
    });
  };
  const std::vector<double> max = download(head.max), sum = download(head.sum),
                            target = download(head.target);
  evaluate::ScoredTokens tokens{.first = first, .log_probabilities = std::vector<double>(count)};
  for (std::int64_t i = 0; i < count; ++i)
    tokens.log_probabilities[i] = target[i] - max[i] - std::log(sum[i]);

  const Tensor& logits = head.logits;  // [C, V / t]
  const std::int64_t columns = logits.shape[1], first_id = groups_.place.tensor * columns;
  const std::int64_t ids = std::clamp<std::int64_t>(vocab_ - first_id, 0, columns);
  std::vector<std::byte> row(ids * size_of(logits.dtype));
  tokens.logits = [&](std::int64_t token) {
    evaluate::LocalLogits local{.first_id = first_id, .values = std::vector<float>(ids)};
    if (ids == 0) return local;
    const Tensor one = logits.rows(token - first, 1);
    backend_.download(row.data(), one.data, row.size());
    convert_to_float(row.data(), local.values.size(), logits.dtype, local.values.data());
    return local;
  };
  observer(*current_, sampler_.first_sample(consumed_, micro_batch_), tokens);
}

double StageRunner::count_correct() {
  const Tensor logits = stage_.sentence_logits();  // [b, c]
  const auto labels = current_->tensor(data::field::kSentenceLabels);
  if (!logits.data || labels.empty()) return 0.0;
  std::vector<std::byte> downloaded(logits.bytes());
  backend_.download(downloaded.data(), logits.data, downloaded.size());
  std::vector<float> values(logits.size());
  convert_to_float(downloaded.data(), values.size(), logits.dtype, values.data());
  const std::int64_t classes = logits.shape[1];
  double correct = 0.0;
  for (std::size_t j = 0; j < labels.size(); ++j) {
    const auto row = values.begin() + static_cast<std::ptrdiff_t>(j) * classes;
    correct += std::max_element(row, row + classes) - row == labels[j];
  }
  return correct;
}

const data::Batch& StageRunner::read(int micro_batch) {
  if (prefetcher_)
    if (const auto* batch = prefetcher_->find(*dataset_, sampler_, consumed_, micro_batch))
      return *batch;
  const comm::WatchedWork reading = groups_.world->work("reading data");
  data::read_micro_batch(*dataset_, sampler_, consumed_, micro_batch, batch_);
  return batch_;
}

// ---- evaluations

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

void Evaluations::check_next(const RunState& state) {
  const auto& every = deck_.evaluate.every;
  const deck::Progress now = state.progress(), next = batches_.advance(now, 1);
  if (!valid_ || !every || !deck::reaches(*every, now, next)) return;
  const Stopwatch watch;
  valid_->require_unchanged();
  const std::int64_t earlier = batches_.times_reached(*every, next) - 1;
  for (std::int64_t i = 0; i < deck_.evaluate.iterations; ++i)
    runner_.check(*valid_, sampler_,
                  (earlier * deck_.evaluate.iterations + i) * deck_.batch.global);
  log_.exclude(watch.seconds());
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
