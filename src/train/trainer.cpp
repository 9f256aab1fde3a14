#include "train/trainer.hpp"

#include <cmath>

#include "core/error.hpp"
#include "core/system/process.hpp"
#include "model/spec.hpp"
#include "train/run_state.hpp"
#include "train/startup/launch.hpp"
#include "train/startup/startup.hpp"

namespace trireme::train {

using device::Phase;

namespace {

/// What a run starts with: the state of a checkpoint, or that of a fresh model.
RunState starting_state(const TrainerOptions& options) {
  RunState state;
  if (options.restart.local)
    state = RunState::from(*options.restart.local);
  else if (const auto& path = options.restart.checkpoint)
    state = RunState::from(checkpoint::read_header(*path));
  state.train_documents = options.training_data.documents;
  state.train_tokens = options.training_data.tokens;
  // A deck without data.tokenizer trains on ids of the same one.
  if (!options.training_data.tokenizer.empty()) state.tokenizer = options.training_data.tokenizer;
  return state;
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
      state_(starting_state(options)),
      batches_(deck.batch),
      end_(deck::end_of_run(deck, state_.progress())),
      sampler_{.global_batch = deck.batch.global,
               .micro_batch = deck.batch.micro,
               .data_ranks = groups.layout.data,
               .data_rank = groups.place.data},
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
      log_(deck_, vocabulary_, plan_, groups, backend, reporter),
      evaluations_(deck_, batches_, sampler_, groups, runner_, log_, reporter),
      stops_(deck_, batches_, *groups.world, options_.since_start, options_.time_limit,
             plan_.parameters) {
  keep_stacks(rank_file(deck_.run.output, ".stacks"));
  // From then on a lost rank exits with 75: the job can resume from that checkpoint.
  checkpoints_.when_published([this] { watchdog_->set_exit_code(ExitCode::stopped_early); });
  loss_scaler_.restore(state_.loss_scale);
  state_.loss_scale = loss_scaler_.state();
  runner_.set_hooks(&optimizer_);
  runner_.set_master_weights(
      [this](const std::string& name) { return optimizer_.whole_master(name); });
  const deck::Verify& verify = deck.train.verify;
  if (verify.step_every || verify.weights_every || verify.inject)
    verifier_.emplace(deck_, groups, backend, parameters_, optimizer_, runner_, reporter);
  if (log_.timers()) runner_.set_timers(log_.timers());
  if (options_.expected) log_.compare_with(*options_.expected);
  backend.reserve_workspace(model::kernel_workspace_bytes(plan::stage_config(deck, vocabulary)));
  open_evaluations();
  evaluations_.after_each_batch([this] { save_if_signalled(); });
  const TaskEvaluations& tasks = evaluations_.tasks();
  for (std::size_t i = 0; i < tasks.size(); ++i) stops_.note_task(tasks.every(i), tasks.samples(i));
  if (options_.restart.checkpoint || options_.restart.local)
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
    const comm::WatchedWork work = preparation(*groups_.world, "opening the data");
    return open_dataset(deck_, vocabulary_, split, samples, *groups_.world);
  };
  auto dataset = open_for(data::samples_wanted(split, length));
  if (split != data::Split::train) return dataset;
  // The order of samples depends on how many are asked for: skipped samples, and those trained on
  // in larger batches before a restart, come out of the last epoch's rest where that is enough.
  const std::int64_t needed = samples_needed(deck_, state_);
  return dataset->samples() < needed ? open_for(needed) : std::move(dataset);
}

void Trainer::open_evaluations() {
  for (const data::Split split : {data::Split::valid, data::Split::test})
    if (plan::uses_split(deck_, split)) evaluations_.add(split, open(split));
}

void Trainer::load() {
  if (options_.restart.local)
    checkpoints_.load_local(state_);
  else
    checkpoints_.load(*options_.restart.checkpoint, state_);
  resume_with(state_);
  // A rank that is lost before the first save exits with 75, too: the job can resume again.
  watchdog_->set_exit_code(ExitCode::stopped_early);
  if (!check_weights())
    throw CollectiveError(
        ExitCode::diverged,
        fmt::format(
            "'{}' has weights that are not finite: {}; resume from an earlier checkpoint "
            "(--restart PATH)",
            (options_.restart.local ? options_.restart.local->path : *options_.restart.checkpoint)
                .string(),
            find_non_finite(*groups_.world, backend_, parameters_, optimizer_)));
}

void Trainer::resume_with(const RunState& state) {
  state_ = state;
  state_.abandoned = 0;
  loss_scaler_.restore(state_.loss_scale);
  state_.loss_scale = loss_scaler_.state();
  previous_ = before_last_iteration(deck_.batch, state_.progress());
  // Another number of iterations where the checkpoint is from before a change of batch.global.
  end_ = deck::end_of_run(deck_, state_.progress());
}

bool Trainer::rewind(const std::string& spike) {
  const deck::Spike& rule = deck_.train.spike;
  advance_save(/*wait=*/true);
  const auto path = checkpoints_.earlier(*rule.back, state_.iteration);
  if (!path) return false;
  RunState state = RunState::from(checkpoint::read_header(*path));
  state.spikes.skipped = state_.spikes.skipped;
  state.train_documents = state_.train_documents;
  state.train_tokens = state_.train_tokens;
  state.passed_through = std::max(state.passed_through, state_.passed_through);
  state.tokenizer = state_.tokenizer;
  const deck::Progress here = state.progress();
  const std::int64_t samples =
      std::max(batches_.advance(here, rule.skip.value_or(0)).samples - here.samples,
               state_.next_sample() - state.next_sample());
  state.passed_samples += samples;
  const std::string lack =
      lack_of_samples(deck_, vocabulary_, samples_needed(deck_, state), *groups_.world);
  if (!lack.empty()) {
    warn(fmt::format("train.spike.back: no data is left to skip: {}", lack));
    return false;
  }
  try {
    prefetcher_.finish();
  } catch (const Error&) {
    // Of a batch that is not used: what is wrong with it does not matter.
  }
  report_timeline(/*ends=*/true);
  report::RewindEvent event{.iteration = state.iteration,
                            .from = state_.iteration,
                            .samples = samples,
                            .path = path->string(),
                            .reason = spike};
  checkpoints_.load(*path, state);
  const std::int64_t end = end_.iteration;
  resume_with(state);
  // As a start from here would: the order of samples may change with their number.
  auto data = open(data::Split::train);
  std::swap(train_data_, data);
  if (end_.iteration != end) open_evaluations();  // of which each takes other samples then
  event.length = {.iterations = end_.iteration, .samples = end_.samples};
  RunState rewound = state_;
  rewound.abandoned = event.from;
  checkpoints_.save_rewound(rewound);
  if (reporter_) reporter_->on(event);
  log_.restart_interval();
  save_due_ = false;
  return true;
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
    profile(state_.iteration + 1, /*begins=*/true);
    const StepResult result = watched_step();
    if (!diagnosis_.empty()) {
      stop = StopReason::corrupted;
      break;
    }
    if (result.spike && deck_.train.spike.back && rewind(*result.spike)) continue;
    if (result.spike) warn(fmt::format("{}: the update is skipped (train.spike)", *result.spike));
    report(result);
    profile(state_.iteration, /*begins=*/false);
    report_gpus_if_due();
    stop = judge(result);
    if (stop != StopReason::none) break;
    evaluations_.run_due(state_, previous_);
    advance_save();
    stop = save_if_due();
    if (stop != StopReason::none) break;
    stop = stops_.after_step(previous_, state_.progress(), end_, finish_prefetch());
  }
  report_timeline(/*ends=*/true);
  // The next start does not know of these iterations.
  if (log_.has_unreported() && stop != StopReason::corrupted) report_interval();
  advance_save(/*wait=*/true);
  if (stop == StopReason::none) stop = StopReason::finished;
  if (stop == StopReason::diverged || stop == StopReason::corrupted) return stop;
  // Before the last evaluation, which may be long: a kill there loses nothing.
  const bool wanted = stop != StopReason::finished || deck_.checkpoint.at_end;
  if (wanted && checkpoints_.last_iteration() != state_.iteration && save() != StopReason::none)
    return StopReason::diverged;
  // A run that was killed in the last evaluation repeats it.
  const bool evaluated = finished_before && state_.iteration == first_iteration;
  if (stop == StopReason::finished && !evaluated && !evaluations_.run_at_end(state_, previous_))
    return diverged("the loss of the last evaluation is not finite");
  delete_old_checkpoints();
  if (stop == StopReason::unreadable_data || stop == StopReason::bad_data)
    diagnosis_ = first_problem(*groups_.world, data_error_);
  return stop;
}

void Trainer::profile(std::int64_t iteration, bool begins) {
  device::RangeListener* const nvtx = device::range_listener(device::RangeListeners::nvtx);
  if (!options_.profiled || !nvtx) return;
  const auto& [first, last] = *options_.profiled;
  if (begins && !profiling_ && iteration >= first && iteration <= last) {
    nvtx->begin({"profile"});
    profiling_ = true;
  } else if (!begins && profiling_ && iteration >= last) {
    nvtx->end();
    profiling_ = false;
  }
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
    // Before the iteration after which they are evaluated the run can still save and stop; an error
    // in the evaluation ends it without a checkpoint.
    if (state_.iteration < end_.iteration) evaluations_.check_next(state_);
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

bool Trainer::due(const std::optional<deck::Length>& every) const {
  return every && deck::reaches(*every, previous_, state_.progress());
}

// ---- reports

bool Trainer::reports_at(std::int64_t iteration) const {
  return iteration % deck_.log.every == 0 || iteration == end_.iteration;
}

void Trainer::report(const StepResult& result) {
  log_.add(result);
  if (reports_at(state_.iteration)) report_interval();
}

void Trainer::report_interval() {
  log_.report(state_, deck_.log.norms != deck::LogNorms::none
                          ? std::optional(optimizer_.parameter_norm())
                          : std::nullopt);
}

void Trainer::report_gpus_if_due() {
  const auto& every = deck_.log.gpu_every;
  if (every && (state_.iteration % *every == 0 || state_.iteration == end_.iteration))
    log_.report_gpus(state_.iteration);
}

// ---- checkpoints

StopReason Trainer::save_if_due() {
  // At a signal in an evaluation it was saved before the evaluation's end.
  if (checkpoints_.last_iteration() == state_.iteration) return StopReason::none;
  const bool due_now = due(deck_.checkpoint.every);
  if (due_now && !save_due_ && state_.bad_iterations > 0)
    warn(
        fmt::format("no checkpoint of iteration {}, which had no finite loss and gradient: it "
                    "waits for an iteration that has",
                    state_.iteration));
  save_due_ = save_due_ || due_now;
  if (state_.bad_iterations > 0) return StopReason::none;
  if (!save_due_) return due(deck_.checkpoint.local.every) ? start_local() : StopReason::none;
  return checkpoints_.saves_in_background() ? start_save() : save();
}

StopReason Trainer::start_save() {
  if (!check_weights())
    return diverged(fmt::format("the weights of iteration {} are not finite", state_.iteration));
  log_.exclude(checkpoints_.start_save(state_, log_.timers()));
  save_due_ = false;
  log_.report_timer(Phase::save, state_.iteration);
  return StopReason::none;
}

StopReason Trainer::start_local() {
  if (!check_weights())
    return diverged(fmt::format("the weights of iteration {} are not finite", state_.iteration));
  log_.exclude(checkpoints_.start_local(state_));
  return StopReason::none;
}

void Trainer::advance_save(bool wait) {
  const Stopwatch watch;
  const std::optional<double> seconds = checkpoints_.advance_save(wait);
  if (wait) log_.exclude(watch.seconds());
  // Before the run stops it waits for the checkpoint in flight and then writes another one.
  if (seconds) stops_.note_save(2.0 * *seconds);
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

void Trainer::save_if_signalled() {
  if (checkpoints_.last_iteration() == state_.iteration || state_.bad_iterations > 0) return;
  if (!stops_.signalled() || !check_weights()) return;
  checkpoints_.advance_save(/*wait=*/true);
  if (checkpoints_.last_iteration() != state_.iteration) checkpoints_.save(state_, nullptr);
  watchdog_->set_exit_code(ExitCode::stopped_early);
  save_due_ = false;
  warn(
      "a signal asked the run to stop: its checkpoint is written, and it stops after this "
      "evaluation");
}

void Trainer::delete_old_checkpoints() {
  // Not while iterations are bad: the newest checkpoint may hold what the others still lack.
  if (state_.bad_iterations == 0) checkpoints_.delete_old();
}

}  // namespace trireme::train
