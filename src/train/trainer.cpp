#include "train/trainer.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "checkpoint/folder.hpp"
#include "checkpoint/model_tensors.hpp"
#include "core/signals.hpp"
#include "deck/describe.hpp"
#include "report/flops.hpp"
#include "train/data_skip.hpp"
#include "train/measurements.hpp"
#include "train/startup.hpp"

namespace trireme::train {
namespace {

using device::Phase;
using device::timed;

/// The timers that are reported with each training line, in Megatron-LM's order.
constexpr Phase kIterationPhases[] = {
    Phase::forward_backward, Phase::forward,       Phase::backward, Phase::batch,
    Phase::grads_sync,       Phase::gradient_norm, Phase::update,   Phase::optimizer};
constexpr Phase kEvaluationPhase[] = {Phase::evaluate};
constexpr Phase kSavePhase[] = {Phase::save};

model::LayerContext layer_context(const deck::Deck& deck, const plan::Vocabulary& vocabulary,
                                  comm::Groups& groups, device::Backend& backend) {
  return {plan::layer_sizes(deck, vocabulary), backend, *groups.tensor};
}

data::Sampler sampler(const deck::Deck& deck, const comm::Groups& groups) {
  return {.global_batch = deck.batch.global,
          .micro_batch = deck.batch.micro,
          .data_ranks = groups.layout.data,
          .data_rank = groups.place.data};
}

/// What a run starts with: the state of a checkpoint, or that of a fresh model.
RunState starting_state(const RestartPoint& restart) {
  if (!restart.checkpoint) return {};
  return RunState::from(checkpoint::read_header(*restart.checkpoint));
}

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
      state_(starting_state(options.restart)),
      batches_(deck.batch),
      end_(deck::end_of_run(deck, state_.progress())),
      sampler_(sampler(deck, groups)),
      learning_rate_(plan::learning_rate(deck)),
      weight_decay_(plan::weight_decay(deck)),
      loss_scaler_(plan::loss_scaler(deck)),
      parameters_(backend, model::gpt_parameters(plan::model_config(deck, vocabulary)),
                  groups.layout, groups.place, plan::compute_dtype(deck),
                  plan::store_options(deck)),
      optimizer_(backend, parameters_,
                 {.world = *groups.world,
                  .data = *groups.data,
                  .embedding = groups.embedding.get(),
                  .stream = deck.parallel.sequence ? groups.tensor.get() : nullptr},
                 plan::optimizer_config(deck)),
      schedule_(pipeline::make_schedule(plan::pipeline_shape(deck), groups.place.pipeline)),
      scheduled_(plan::micro_batches(deck)),
      runner_(groups, layer_context(deck, vocabulary, groups, backend), parameters_,
              pipeline::count_slots(schedule_), deck.parallel.overlap.pipeline),
      train_data_(open(data::Split::train)) {
  loss_scaler_.restore(state_.loss_scale);
  state_.loss_scale = loss_scaler_.state();
  runner_.set_observer(&optimizer_);
  if (deck_.log.timers) runner_.set_timers(&timers_.emplace(backend_));
  backend.reserve_workspace(model::kernel_workspace_bytes(plan::layer_sizes(deck, vocabulary)));
  if (plan::uses_split(deck_, data::Split::valid)) valid_data_ = open(data::Split::valid);
  if (plan::uses_split(deck_, data::Split::test)) test_data_ = open(data::Split::test);
  if (options_.restart.checkpoint)
    load();
  else
    optimizer_.initialize(static_cast<std::uint64_t>(deck_.run.seed));
}

data::GptDataset Trainer::open(data::Split split) {
  data::RunLength length = plan::run_length(deck_);
  if (deck_.evaluate.every)
    length.evaluations = batches_.times_reached(*deck_.evaluate.every, end_);
  data::GptDataset dataset = open(split, data::samples_wanted(split, length));
  if (split != data::Split::train) return dataset;
  // The order of samples depends on how many are asked for: what is passed over, or was trained on
  // in larger batches before a restart, comes out of the last epoch's rest where that is enough.
  const std::int64_t needed =
      end_.samples + state_.passed_samples + samples_to_skip(deck_, state_, end_.iteration);
  return dataset.samples() < needed ? open(split, needed) : std::move(dataset);
}

data::GptDataset Trainer::open(data::Split split, std::int64_t samples) {
  return data::open_gpt_blend(
      plan::split_config(deck_, split, vocabulary_, samples),
      {.builds = groups_.world->rank() == 0, .barrier = [this] { groups_.world->barrier(); }});
}

void Trainer::load() {
  checkpoint::load(*options_.restart.checkpoint, *groups_.world,
                   checkpoint::checkpoint_tensors(parameters_, optimizer_), &backend_);
  optimizer_.set_step(state_.applied_iterations);
  optimizer_.gather_weights();
  last_checkpoint_ = options_.restart.checkpoint;
  saved_iteration_ = state_.iteration;
}

// ---- the loop

StopReason Trainer::run() {
  if (deck_.log.gpu_every || deck_.log.rank_files) gpu_watch_.emplace(deck_, *groups_.world);
  StopReason stop = stop_before_start();
  if (reporter_)
    reporter_->print(report::datetime_line("before the start of training step", unix_time()));
  interval_ = {};
  const std::int64_t first_iteration = state_.iteration;
  while (stop == StopReason::none && state_.iteration < end_.iteration) {
    skip_data_if_due();
    report(step());
    report_gpus_if_due();
    evaluate_if_due();
    if (due(deck_.checkpoint.every)) save();
    stop = stop_after_step();
  }
  if (stop == StopReason::none) stop = StopReason::finished;
  // Before the last evaluation, which may be long: who kills the run there loses nothing.
  const bool wanted = stop != StopReason::finished || deck_.checkpoint.at_end;
  if (wanted && saved_iteration_ != state_.iteration) save();
  if (stop == StopReason::finished && state_.iteration > first_iteration) evaluate_at_end();
  return stop;
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

Trainer::StepResult Trainer::step(PhaseSeconds* phases) {
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
  const pipeline::LossSum loss = timed(timers(), Phase::forward_backward, [&] {
    return runner_.train(train_data_, batch, state_.next_sample(), schedule_);
  });
  const double passes = mark();
  timed(timers(), Phase::grads_sync, [&] { optimizer_.reduce_gradients(); });
  const double reduction = mark();
  StepResult result = timed(timers(), Phase::optimizer,
                            [&] { return update_weights(loss_scale, batch.global_batch); });
  result.loss = loss.mean();
  if (!std::isfinite(result.loss)) ++state_.nan;
  previous_ = state_.progress();
  ++state_.iteration;
  state_.consumed_samples += batch.global_batch;
  const double total = mark();
  if (phases) *phases = {passes, reduction - passes, total - reduction};
  if (timers_) timers_->settle();
  longest_step_ = std::max(longest_step_, total);
  return result;
}

Trainer::StepResult Trainer::update_weights(double loss_scale, std::int64_t samples) {
  StepResult result{.samples = samples};
  result.gradient_norm =
      timed(timers(), Phase::gradient_norm, [&] { return optimizer_.gradient_norm(loss_scale); });
  if (deck_.log.norms && reports_at(state_.iteration + 1))
    result.gradient_zeros = optimizer_.gradient_zeros();
  const auto position = [&] {
    return plan::counts_samples(deck_) ? state_.applied_samples : state_.applied_iterations;
  };
  // A gradient that is not finite would spoil the weights for good: the step is skipped and
  // counted.
  result.applied = std::isfinite(result.gradient_norm);
  if (result.applied) {
    timed(timers(), Phase::update, [&] {
      optimizer_.update({.learning_rate = learning_rate_.at(position()),
                         .weight_decay = weight_decay_.at(position()),
                         .gradient_norm = result.gradient_norm,
                         .loss_scale = loss_scale});
    });
    ++state_.applied_iterations;
    state_.applied_samples += samples;
  } else {
    ++state_.skipped;
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

void Trainer::forward_only() { runner_.evaluate(train_data_, next_batch(), state_.next_sample()); }

// ---- reports

bool Trainer::reports_at(std::int64_t iteration) const {
  return iteration % deck_.log.every == 0 || iteration == end_.iteration;
}

void Trainer::report(const StepResult& result) {
  const bool finite = std::isfinite(result.loss);
  interval_.loss += finite ? result.loss : 0.0;
  interval_.nan += !finite;
  interval_.skipped += !result.applied;
  ++interval_.iterations;
  interval_.samples += result.samples;
  if (!reports_at(state_.iteration)) return;

  report::TrainEvent event = train_event(result);
  if (deck_.log.norms) event.parameter_norm = optimizer_.parameter_norm();
  if (reporter_) reporter_->on(event);
  if (deck_.log.memory && !memory_reported_) report_memory();
  report_timers(kIterationPhases, interval_.iterations);
  interval_ = {};
}

report::TrainEvent Trainer::train_event(const StepResult& result) const {
  const double seconds = interval_.watch.seconds();
  const deck::Model& model = deck_.model;
  const double tokens = static_cast<double>(interval_.samples * model.sequence);
  const double flops = tokens * report::model_flops_per_token(model.layers, model.hidden,
                                                              model.sequence, vocabulary_.size);
  const double flops_per_rank = flops / seconds / groups_.layout.ranks();
  const double peak = device::peak_flops(backend_.gpu_name(), parameters_.dtype());
  const std::int64_t counted = interval_.iterations - interval_.nan;
  return {.iteration = state_.iteration,
          .consumed_samples = state_.consumed_samples,
          .consumed_tokens = state_.consumed_samples * model.sequence,
          .loss = counted > 0 ? interval_.loss / static_cast<double>(counted) : std::nan(""),
          .grad_norm = std::abs(result.gradient_norm),  // a NaN must show no sign
          .gradient_zeros = result.gradient_zeros,
          .learning_rate = result.learning_rate,
          .loss_scale = result.loss_scale,
          .global_batch = result.samples,
          .ms = 1e3 * seconds / static_cast<double>(interval_.iterations),
          .tokens_per_second = tokens / seconds,
          .model_tflops_per_rank = flops_per_rank / 1e12,
          .mfu = peak > 0.0 ? std::optional(flops_per_rank / peak) : std::nullopt,
          .skipped = interval_.skipped,
          .nan = interval_.nan};
}

void Trainer::report_memory() {
  memory_reported_ = true;
  report::MemoryEvent event = memory_in_use(backend_, groups_);
  event.iteration = state_.iteration;
  event.planned_bytes = static_cast<std::int64_t>(plan_.largest().memory.total());
  if (reporter_) reporter_->on(event);
}

void Trainer::report_gpus_if_due() {
  const auto& every = deck_.log.gpu_every;
  if (!every || (state_.iteration % *every != 0 && state_.iteration != end_.iteration)) return;
  report::GpuEvent event = gpu_watch_->gather();
  event.iteration = state_.iteration;
  if (reporter_ && !event.gpus.empty()) reporter_->on(event);
}

void Trainer::report_timers(std::span<const Phase> phases, std::int64_t iterations) {
  if (!timers_) return;
  report::TimersEvent event =
      timers_event(*timers_, phases, static_cast<double>(iterations), *groups_.world);
  event.iteration = state_.iteration;
  if (reporter_) reporter_->on(event);
}

// ---- evaluation

// Each evaluation of the validation split takes the samples after those of the one before.

void Trainer::evaluate_if_due() {
  if (!valid_data_ || !due(deck_.evaluate.every)) return;
  evaluate(data::Split::valid, *valid_data_, evaluations() - 1);
}

void Trainer::evaluate_at_end() {
  if (!deck_.evaluate.at_end) return;
  if (valid_data_ && !due(deck_.evaluate.every))
    evaluate(data::Split::valid, *valid_data_, evaluations(), /*at_end=*/true);
  if (test_data_) evaluate(data::Split::test, *test_data_, 0, /*at_end=*/true);
}

std::int64_t Trainer::evaluations() const {
  const auto& every = deck_.evaluate.every;
  return every ? batches_.times_reached(*every, state_.progress()) : 0;
}

void Trainer::evaluate(data::Split split, const data::GptDataset& dataset, std::int64_t before,
                       bool at_end) {
  const Stopwatch watch;
  const std::int64_t first_batch = before * deck_.evaluate.iterations;
  pipeline::LossSum sum;
  timed(timers(), Phase::evaluate, [&] {
    for (std::int64_t i = 0; i < deck_.evaluate.iterations; ++i) {
      const pipeline::LossSum batch =
          runner_.evaluate(dataset, sampler_, (first_batch + i) * deck_.batch.global);
      sum.loss += batch.loss;
      sum.tokens += batch.tokens;
    }
  });
  report_timers(kEvaluationPhase);
  if (reporter_)
    reporter_->on(
        report::EvalEvent{.iteration = state_.iteration,
                          .consumed_samples = state_.consumed_samples,
                          .consumed_tokens = state_.consumed_samples * deck_.model.sequence,
                          .split = std::string(data::name_of(split)),
                          .loss = sum.mean(),
                          .at_end = at_end});
  interval_.watch.exclude(watch.seconds());
}

// ---- checkpoints

void Trainer::save() {
  const Stopwatch watch;
  const std::filesystem::path folder = checkpoint_folder(deck_);
  const std::filesystem::path path = checkpoint::step_path(folder, state_.iteration);
  timed(timers(), Phase::save, [&] {
    checkpoint::save(path, *groups_.world, state_.attributes(), deck::print_deck(deck_),
                     checkpoint::checkpoint_tensors(parameters_, optimizer_), &backend_);
  });
  last_checkpoint_ = path;
  saved_iteration_ = state_.iteration;
  // Whoever loses a rank from now on may run again, and comes further each time.
  watchdog_->set_exit_code(ExitCode::stopped_early);
  last_save_ = watch.seconds();
  if (reporter_) {
    reporter_->on(report::CheckpointEvent{
        .iteration = state_.iteration,
        .path = path.string(),
        .bytes = static_cast<std::int64_t>(std::filesystem::file_size(path)),
        .seconds = last_save_});
    checkpoint::retain(folder, deck_.checkpoint.keep, [&](std::int64_t iteration) {
      const auto& every = deck_.checkpoint.keep_every;
      return every && deck::reaches(*every, batches_.advance({}, iteration - 1),
                                    batches_.advance({}, iteration));
    });
  }
  report_timers(kSavePhase);
  interval_.watch.exclude(watch.seconds());
}

// ---- stops

bool Trainer::sees_kill_switch() const {
  // Rank 0 alone looks: on a shared file system the others might see another answer.
  std::error_code unreadable;  // what cannot be looked at does not stop the run
  return groups_.world->rank() == 0 && deck_.train.kill_switch &&
         std::filesystem::exists(*deck_.train.kill_switch, unreadable);
}

StopReason Trainer::stop_before_start() {
  const bool kill = groups_.world->all_reduce(sees_kill_switch(), comm::Reduce::max) > 0.0;
  return kill ? StopReason::kill_switch : StopReason::none;
}

double Trainer::next_iteration_seconds() const {
  const deck::Progress now = state_.progress(), next = batches_.advance(now, 1);
  const auto& every = deck_.evaluate.every;
  const bool evaluates = (every && deck::reaches(*every, now, next)) ||
                         (deck_.evaluate.at_end && next.iteration == end_.iteration);
  // A batch of an evaluation is a forward pass, a third of a step: a step's time for each covers
  // the validation and the test split.
  const std::int64_t samples =
      next.samples - now.samples + (evaluates ? deck_.evaluate.iterations * deck_.batch.global : 0);
  return longest_step_ * static_cast<double>(samples) /
         static_cast<double>(now.samples - previous_.samples);
}

StopReason Trainer::stop_after_step() {
  const double elapsed = options_.since_start.seconds();
  // Before the first save its time is guessed from a disk of 500 MB/s and fp32 weights and moments.
  const double save =
      last_save_ > 0.0 ? last_save_ : 12.0 * static_cast<double>(plan_.parameters) / 500e6;
  const double needed = elapsed + next_iteration_seconds() + save;
  const bool time_limit = options_.time_limit && needed >= *options_.time_limit;
  const bool exit_duration =
      deck_.train.exit_duration && elapsed >= deck::in_seconds(*deck_.train.exit_duration);
  // What any rank saw holds for all.
  double seen[] = {stop_signal() != 0 ? 1.0 : 0.0, sees_kill_switch() ? 1.0 : 0.0,
                   exit_duration ? 1.0 : 0.0, time_limit ? 1.0 : 0.0};
  groups_.world->all_reduce(seen, std::size(seen), DType::f64, comm::Reduce::max);
  if (state_.iteration == end_.iteration) return StopReason::none;
  if (seen[0] > 0.0) return StopReason::signal;
  if (seen[1] > 0.0) return StopReason::kill_switch;
  if (seen[2] > 0.0) return StopReason::exit_duration;
  if (seen[3] > 0.0) return StopReason::time_limit;
  if (due(deck_.train.exit_interval)) return StopReason::exit_interval;
  return StopReason::none;
}

}  // namespace trireme::train
