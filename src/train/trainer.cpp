#include "train/trainer.hpp"

#include <cmath>

#include "core/error.hpp"
#include "model/spec.hpp"
#include "train/non_finite.hpp"
#include "train/run_state.hpp"
#include "train/startup/datasets.hpp"
#include "train/startup/startup.hpp"

namespace trireme::train {
namespace {

using device::Phase;
using device::timed;

data::Sampler sampler(const deck::Deck& deck, const comm::Groups& groups) {
  return {.global_batch = deck.batch.global,
          .micro_batch = deck.batch.micro,
          .data_ranks = groups.layout.data,
          .data_rank = groups.place.data};
}

/// The progress before the last iteration of a run that has come to `now`. In a ramp-up its batch
/// was smaller than `global_batch`, which it is taken to have been where `batches` have changed
/// since.
deck::Progress before_last_iteration(const deck::BatchSizes& batches, std::int64_t global_batch,
                                     const deck::Progress& now) {
  if (now.iteration == 0) return now;
  const deck::Progress before = batches.advance({}, now.iteration - 1);
  if (batches.advance(before, 1) == now) return before;
  return {now.iteration - 1, now.samples - global_batch};
}

/// What a run starts with: the state of a checkpoint, or that of a fresh model.
RunState starting_state(const TrainerOptions& options) {
  RunState state;
  if (const auto& path = options.restart.checkpoint)
    state = RunState::from(checkpoint::read_header(*path));
  state.train_documents = options.training_data.documents;
  state.train_tokens = options.training_data.tokens;
  return state;
}

bool has_sentence_head(const deck::Deck& deck) { return deck.model.bert.binary_head == true; }

}  // namespace

Trainer::Trainer(const deck::Deck& deck, const plan::Vocabulary& vocabulary, comm::Groups& groups,
                 device::Backend& backend, report::Reporter* reporter,
                 const TrainerOptions& options)
    : deck_(deck),
      vocabulary_(vocabulary),
      plan_(plan::plan_run(deck, vocabulary.size)),
      groups_(groups),
      backend_(backend),
      reporter_(reporter),
      options_(options),
      state_(starting_state(options)),
      batches_(deck.batch),
      end_(deck::end_of_run(deck, state_.progress())),
      sampler_(sampler(deck, groups)),
      learning_rate_(plan::learning_rate(deck)),
      weight_decay_(plan::weight_decay(deck)),
      loss_scaler_(plan::loss_scaler(deck)),
      parameters_(backend, model::declare_parameters(plan::model_spec(deck, vocabulary)),
                  groups.layout, groups.place, plan::precision(deck), plan::store_options(deck)),
      optimizer_(backend, parameters_,
                 {.world = *groups.world,
                  .data = *groups.data,
                  .embedding = groups.embedding.get(),
                  .sequence_parallel = deck.parallel.sequence ? groups.tensor.get() : nullptr,
                  .tensor = groups.tensor.get()},
                 plan::optimizer_config(deck)),
      checkpoints_(deck_, groups, backend, parameters_, optimizer_, reporter, options_.lock),
      schedule_(pipeline::make_schedule(plan::pipeline_shape(deck), groups.place.pipeline)),
      scheduled_(plan::micro_batches(deck)),
      runner_(groups, backend, plan::stage_config(deck, vocabulary), parameters_,
              pipeline::count_slots(schedule_), deck.parallel.overlap.pipeline),
      train_data_(open(data::Split::train)),
      tasks_(deck_, groups),
      log_(deck_, vocabulary_, plan_, groups, backend, reporter),
      stops_(deck_, batches_, *groups.world, options_.since_start, options_.time_limit,
             plan_.parameters) {
  loss_scaler_.restore(state_.loss_scale);
  state_.loss_scale = loss_scaler_.state();
  runner_.set_hooks(&optimizer_);
  if (log_.timers()) runner_.set_timers(log_.timers());
  if (options_.expected) log_.compare_with(*options_.expected);
  backend.reserve_workspace(model::kernel_workspace_bytes(plan::stage_config(deck, vocabulary)));
  if (plan::uses_split(deck_, data::Split::valid)) valid_data_ = open(data::Split::valid);
  if (plan::uses_split(deck_, data::Split::test)) test_data_ = open(data::Split::test);
  if (options_.restart.checkpoint)
    load();
  else
    optimizer_.initialize(static_cast<std::uint64_t>(deck_.run.seed));
}

std::unique_ptr<const data::Dataset> Trainer::open(data::Split split) {
  data::RunLength length = plan::run_length(deck_);
  if (deck_.evaluate.every)
    length.evaluations = batches_.times_reached(*deck_.evaluate.every, end_);
  const auto open_for = [&](std::int64_t samples) {
    // Rank 0 may build sample indices for minutes, while the others wait.
    const comm::WatchedWork work = groups_.world->work("opening the data", /*minimum=*/600.0);
    return open_dataset(deck_, vocabulary_, split, samples, *groups_.world);
  };
  auto dataset = open_for(data::samples_wanted(split, length));
  if (split != data::Split::train) return dataset;
  // The order of samples depends on how many are asked for: skipped samples, and those trained on
  // in larger batches before a restart, come out of the last epoch's rest where that is enough.
  const std::int64_t needed =
      end_.samples + state_.passed_samples + samples_to_skip(deck_, state_, end_.iteration);
  return dataset->samples() < needed ? open_for(needed) : std::move(dataset);
}

void Trainer::load() {
  checkpoints_.load(*options_.restart.checkpoint, state_);
  previous_ = before_last_iteration(batches_, deck_.batch.global, state_.progress());
  if (!check_weights())
    throw CollectiveError(
        ExitCode::diverged,
        fmt::format("'{}' has weights that are not finite: {}; resume from an earlier checkpoint "
                    "(--restart PATH)",
                    options_.restart.checkpoint->string(),
                    find_non_finite(*groups_.world, backend_, parameters_, optimizer_)));
}

// ---- the loop

StopReason Trainer::run() {
  StopReason stop = stops_.before_start();
  if (reporter_)
    reporter_->print(report::datetime_line("before the start of training step", unix_time()));
  const std::int64_t first_iteration = state_.iteration;
  const bool finished_before =
      groups_.world->all_reduce(options_.finished, comm::Reduce::max) > 0.0;
  if (stop == StopReason::none && first_iteration < end_.iteration)
    checkpoints_.preflight(state_.progress(), end_);
  log_.start();
  while (stop == StopReason::none && state_.iteration < end_.iteration) {
    skip_data_if_due();
    start_prefetch();
    const StepResult result = watched_step();
    report(result);
    report_gpus_if_due();
    stop = judge(result);
    if (stop != StopReason::none) break;
    evaluate_if_due();
    evaluate_tasks();
    advance_save();
    stop = save_if_due();
    if (stop != StopReason::none) break;
    stop = stops_.after_step(previous_, state_.progress(), end_, finish_prefetch());
  }
  advance_save(/*wait=*/true);
  if (stop == StopReason::none) stop = StopReason::finished;
  if (stop == StopReason::diverged) return stop;
  // Before the last evaluation, which may be long: a kill there loses nothing.
  const bool wanted = stop != StopReason::finished || deck_.checkpoint.at_end;
  if (wanted && checkpoints_.last_iteration() != state_.iteration && save() != StopReason::none)
    return StopReason::diverged;
  // A run that was killed in the last evaluation repeats it.
  const bool evaluated = finished_before && state_.iteration == first_iteration;
  if (stop == StopReason::finished && !evaluated && evaluate_at_end() != StopReason::none)
    return StopReason::diverged;
  delete_old_checkpoints();
  if (stop == StopReason::unreadable_data || stop == StopReason::bad_data)
    diagnosis_ = first_problem(*groups_.world, data_error_);
  return stop;
}

void Trainer::start_prefetch() {
  // Asking for a file's state may be a message to a server.
  constexpr double kFileCheckSeconds = 10.0;
  RunState next = state_;
  ++next.iteration;
  next.consumed_samples += batches_.at(state_.consumed_samples);
  if (next.iteration >= end_.iteration || data_to_skip(deck_, next)) return;
  const bool checks_files = since_data_check_.seconds() >= kFileCheckSeconds;
  if (checks_files) since_data_check_ = {};
  data::Sampler batch = sampler_;
  batch.global_batch = batches_.at(next.consumed_samples);
  if (!runner_.reads_tokens()) return;
  prefetcher_.start(*train_data_, batch, next.next_sample(), checks_files);
}

ExitCode Trainer::finish_prefetch() {
  try {
    prefetcher_.finish();
  } catch (const IoError& error) {
    data_error_ = error.what();
    return error.code();
  } catch (const DataError& error) {
    data_error_ = error.what();
    return error.code();
  }
  return ExitCode::success;
}

void Trainer::skip_data_if_due() {
  const auto range = data_to_skip(deck_, state_);
  if (!range) return;
  const std::int64_t samples = skip_data(deck_, *range, state_);
  if (reporter_)
    reporter_->on(report::SkipEvent{.iteration = state_.iteration + 1,
                                    .first = range->first,
                                    .last = range->last,
                                    .samples = samples});
}

data::Sampler Trainer::next_batch() const {
  data::Sampler batch = sampler_;
  batch.global_batch = batches_.at(state_.consumed_samples);
  return batch;
}

void Trainer::schedule(std::int64_t micro_batches) {
  if (micro_batches == scheduled_) return;
  pipeline::PipelineShape shape = plan::pipeline_shape(deck_);
  shape.micro_batches = static_cast<int>(micro_batches);
  schedule_ = pipeline::make_schedule(shape, groups_.place.pipeline);
  scheduled_ = micro_batches;
}

bool Trainer::due(const std::optional<deck::Length>& every) const {
  return every && deck::reaches(*every, previous_, state_.progress());
}

StepResult Trainer::watched_step() {
  const std::int64_t samples = batches_.at(state_.consumed_samples);
  const Stopwatch watch;
  if (const auto limit = step_limit_.seconds(samples))
    watchdog_->set_limit(comm::to_duration(*limit));
  const StepResult result = recorded_step();
  watchdog_->set_limit(std::nullopt);
  step_limit_.note(watch.seconds(), samples);
  watchdog_->set_phase("the end", state_.iteration);
  return result;
}

StepResult Trainer::step(PhaseSeconds* phases) {
  const Stopwatch watch;
  const auto mark = [&] {
    if (phases) backend_.synchronize();
    return watch.seconds();
  };
  const data::Sampler batch = next_batch();
  schedule(batch.micro_batches());
  parameters_.zero_gradients();
  const double loss_scale = loss_scaler_.scale();
  runner_.set_loss_scale(loss_scale);
  watchdog_->set_phase("forward and backward", state_.iteration + 1);
  const LossSum loss = timed(log_.timers(), Phase::forward_backward, [&] {
    return runner_.train(*train_data_, batch, state_.next_sample(), schedule_, &prefetcher_);
  });
  const double passes = mark();
  watchdog_->set_phase("the gradient reduction", state_.iteration + 1);
  timed(log_.timers(), Phase::grads_sync, [&] { optimizer_.reduce_gradients(); });
  const double reduction = mark();
  watchdog_->set_phase("the update", state_.iteration + 1);
  StepResult result = timed(log_.timers(), Phase::optimizer,
                            [&] { return update_weights(loss_scale, batch.global_batch); });
  result.loss = loss.mean();
  if (has_sentence_head(deck_)) result.sentence_loss = loss.sentence_mean();
  if (!result.has_finite_loss()) ++state_.nan;
  previous_ = state_.progress();
  ++state_.iteration;
  state_.consumed_samples += batch.global_batch;
  const double total = mark();
  if (phases) *phases = {passes, reduction - passes, total - reduction};
  if (log_.timers()) log_.timers()->settle();
  stops_.note_step(total);
  return result;
}

StepResult Trainer::recorded_step() {
  if (!options_.timeline) return step();
  const std::int64_t iteration = state_.iteration + 1;
  options_.timeline->begin_iteration(iteration, static_cast<int>(next_batch().micro_batches()));
  const StepResult result = step();
  const Stopwatch watch;
  const auto event = options_.timeline->end_iteration(iteration, iteration == end_.iteration);
  if (event && reporter_) reporter_->on(*event);
  log_.exclude(watch.seconds());
  return result;
}

StepResult Trainer::update_weights(double loss_scale, std::int64_t samples) {
  StepResult result{.samples = samples};
  result.gradient_norm = timed(log_.timers(), Phase::gradient_norm,
                               [&] { return optimizer_.gradient_norm(loss_scale); });
  if (deck_.log.norms != deck::LogNorms::none && reports_at(state_.iteration + 1))
    result.gradient_zeros = optimizer_.gradient_zeros();
  const auto position = [&] {
    return plan::counts_samples(deck_) ? state_.applied_samples : state_.applied_iterations;
  };
  // A gradient that is not finite would make the weights unusable: the step is skipped and
  // counted.
  result.applied = std::isfinite(result.gradient_norm);
  if (result.applied) {
    checkpoints_.finish_copies();
    timed(log_.timers(), Phase::update, [&] {
      optimizer_.update({.learning_rate = learning_rate_.at(position()),
                         .weight_decay = weight_decay_.at(position()),
                         .gradient_norm = result.gradient_norm,
                         .loss_scale = loss_scale});
    });
    ++state_.applied_iterations;
    state_.applied_samples += samples;
  } else {
    ++state_.skipped;
    result.searches_scale = loss_scaler_.can_fall();
  }
  update_loss_scale(result.applied);
  result.learning_rate = learning_rate_.at(position());
  result.loss_scale = loss_scaler_.scale();
  return result;
}

void Trainer::update_loss_scale(bool applied) {
  // The norm is the same on every rank, and so is what follows from it.
  try {
    loss_scaler_.update(/*overflow=*/!applied);
  } catch (const Error& error) {
    throw CollectiveError(error.code(), error.what());
  }
  state_.loss_scale = loss_scaler_.state();
}

void Trainer::forward_only() { runner_.evaluate(*train_data_, next_batch(), state_.next_sample()); }

// ---- reports

bool Trainer::reports_at(std::int64_t iteration) const {
  return iteration % deck_.log.every == 0 || iteration == end_.iteration;
}

void Trainer::report(const StepResult& result) {
  log_.add(result);
  if (!reports_at(state_.iteration)) return;
  log_.report(result, state_,
              deck_.log.norms != deck::LogNorms::none ? std::optional(optimizer_.parameter_norm())
                                                      : std::nullopt);
}

void Trainer::report_gpus_if_due() {
  const auto& every = deck_.log.gpu_every;
  if (every && (state_.iteration % *every == 0 || state_.iteration == end_.iteration))
    log_.report_gpus(state_.iteration);
}

// ---- evaluation

// Each evaluation of the validation split takes the samples after those of the one before.

void Trainer::evaluate_if_due() {
  if (!valid_data_ || !due(deck_.evaluate.every)) return;
  evaluate(data::Split::valid, *valid_data_, evaluations() - 1);
}

StopReason Trainer::evaluate_at_end() {
  if (!deck_.evaluate.at_end) return StopReason::none;
  double loss = 0.0;
  if (valid_data_ && !due(deck_.evaluate.every))
    loss += evaluate(data::Split::valid, *valid_data_, evaluations(), /*at_end=*/true);
  if (test_data_) loss += evaluate(data::Split::test, *test_data_, 0, /*at_end=*/true);
  evaluate_tasks(/*at_end=*/true);
  return std::isfinite(loss) ? StopReason::none
                             : diverged("the loss of the last evaluation is not finite");
}

std::int64_t Trainer::evaluations() const {
  const auto& every = deck_.evaluate.every;
  return every ? batches_.times_reached(*every, state_.progress()) : 0;
}

double Trainer::evaluate(data::Split split, const data::Dataset& dataset, std::int64_t before,
                         bool at_end) {
  watchdog_->set_phase("the evaluation", state_.iteration);
  const Stopwatch watch;
  const std::int64_t first_batch = before * deck_.evaluate.iterations;
  LossSum sum;
  timed(log_.timers(), Phase::evaluate, [&] {
    for (std::int64_t i = 0; i < deck_.evaluate.iterations; ++i) {
      const LossSum batch =
          runner_.evaluate(dataset, sampler_, (first_batch + i) * deck_.batch.global);
      sum += batch;
    }
  });
  log_.report_timer(Phase::evaluate, state_.iteration);
  const auto sentences = [&](double figure) {
    return has_sentence_head(deck_) ? std::optional(figure) : std::nullopt;
  };
  if (reporter_)
    reporter_->on(
        report::EvalEvent{.iteration = state_.iteration,
                          .consumed_samples = state_.consumed_samples,
                          .consumed_tokens = state_.consumed_samples * deck_.model.sequence,
                          .split = std::string(data::name_of(split)),
                          .loss = sum.mean(),
                          .sentence_loss = sentences(sum.sentence_mean()),
                          .sentence_accuracy = sentences(sum.sentence_accuracy()),
                          .at_end = at_end});
  if (!std::isfinite(sum.mean()))
    warn(fmt::format("the loss of the {} split is not finite", data::name_of(split)));
  log_.exclude(watch.seconds());
  return sum.mean();
}

void Trainer::evaluate_tasks(bool at_end) {
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    if (due(tasks_.every(i)) == at_end) continue;
    const Stopwatch watch;
    report::TaskEvent event{.iteration = state_.iteration,
                            .consumed_samples = state_.consumed_samples,
                            .consumed_tokens = state_.consumed_samples * deck_.model.sequence,
                            .task = tasks_.label(i)};
    timed(log_.timers(), Phase::evaluate, [&] { event.metrics = tasks_.evaluate(i, runner_); });
    log_.report_timer(Phase::evaluate, state_.iteration);
    if (reporter_) reporter_->on(event);
    log_.exclude(watch.seconds());
  }
}

// ---- checkpoints

StopReason Trainer::save_if_due() {
  const bool due_now = due(deck_.checkpoint.every);
  if (due_now && !save_due_ && state_.bad_iterations > 0)
    warn(
        fmt::format("no checkpoint of iteration {}, which had no finite loss and gradient: it "
                    "waits for an iteration that has",
                    state_.iteration));
  save_due_ = save_due_ || due_now;
  if (!save_due_ || state_.bad_iterations > 0) return StopReason::none;
  return deck_.checkpoint.async == true ? start_save() : save();
}

StopReason Trainer::start_save() {
  if (!check_weights())
    return diverged(fmt::format("the weights of iteration {} are not finite", state_.iteration));
  log_.exclude(checkpoints_.start_save(state_, log_.timers()));
  save_due_ = false;
  log_.report_timer(Phase::save, state_.iteration);
  return StopReason::none;
}

void Trainer::advance_save(bool wait) {
  const Stopwatch watch;
  const std::optional<double> seconds = checkpoints_.advance_save(wait);
  if (wait) log_.exclude(watch.seconds());
  if (!seconds) return;
  // Before the run stops it waits for the checkpoint in flight and then writes another one.
  stops_.note_save(2.0 * *seconds);
  watchdog_->set_exit_code(ExitCode::stopped_early);
}

StopReason Trainer::save() {
  if (!check_weights())
    return diverged(fmt::format("the weights of iteration {} are not finite", state_.iteration));
  watchdog_->set_phase("the checkpoint", state_.iteration);
  const Stopwatch watch;
  stops_.note_save(checkpoints_.save(state_, log_.timers()));
  // From here on a lost rank exits with 75: the job can resume from this checkpoint.
  watchdog_->set_exit_code(ExitCode::stopped_early);
  save_due_ = false;
  log_.report_timer(Phase::save, state_.iteration);
  log_.exclude(watch.seconds());
  return StopReason::none;
}

void Trainer::delete_old_checkpoints() {
  // Not while iterations are bad: the newest checkpoint may hold what the others still lack.
  if (state_.bad_iterations == 0) checkpoints_.delete_old();
}

}  // namespace trireme::train
