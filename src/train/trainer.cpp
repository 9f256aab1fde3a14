#include "train/trainer.hpp"

#include <algorithm>
#include <cmath>

#include "checkpoint/folder.hpp"
#include "checkpoint/model_tensors.hpp"
#include "core/memory.hpp"
#include "core/signals.hpp"
#include "deck/describe.hpp"
#include "report/flops.hpp"

namespace trireme::train {
namespace {

model::LayerContext layer_context(const deck::Deck& deck, const plan::Vocabulary& vocabulary,
                                  comm::Groups& groups, device::Backend& backend) {
  const model::LayerSizes sizes{plan::model_config(deck, vocabulary.size), deck.batch.micro,
                                groups.layout.tensor, DType::f32};
  return {sizes, backend, *groups.tensor};
}

data::Sampler sampler(const deck::Deck& deck, const comm::Groups& groups) {
  return {.global_batch = deck.batch.global,
          .micro_batch = deck.batch.micro,
          .data_ranks = groups.layout.data,
          .data_rank = groups.place.data};
}

/// Whether iteration `iteration` is a multiple of an optional interval.
bool due(const std::optional<deck::Length>& every, std::int64_t iteration, const deck::Deck& deck) {
  return every && iteration > 0 && iteration % deck::in_iterations(*every, deck) == 0;
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
      total_iterations_(deck::total_iterations(deck)),
      sampler_(sampler(deck, groups)),
      learning_rate_(plan::learning_rate(deck)),
      parameters_(backend, model::gpt_parameters(plan::model_config(deck, vocabulary.size)),
                  groups.layout, groups.place, DType::f32, /*with_gradients=*/true),
      optimizer_(backend, parameters_, {*groups.world, *groups.data, groups.embedding.get()},
                 plan::optimizer_config(deck)),
      schedule_(pipeline::one_f_one_b(groups.layout.pipeline, groups.place.pipeline,
                                      plan::micro_batches(deck))),
      runner_(groups, layer_context(deck, vocabulary, groups, backend), parameters_,
              pipeline::one_f_one_b_slots(groups.layout.pipeline, groups.place.pipeline,
                                          plan::micro_batches(deck))),
      train_data_(open(data::Split::train)) {
  if (plan::uses_split(deck_, data::Split::valid)) valid_data_ = open(data::Split::valid);
  if (plan::uses_split(deck_, data::Split::test)) test_data_ = open(data::Split::test);
  if (options_.restart.checkpoint)
    load(options_.restart);
  else
    parameters_.initialize(static_cast<std::uint64_t>(deck_.run.seed));
}

data::GptDataset Trainer::open(data::Split split) {
  const std::int64_t samples = data::samples_wanted(split, plan::run_length(deck_));
  return data::open_gpt_split(
      plan::split_config(deck_, split, vocabulary_, samples),
      {.builds = groups_.world->rank() == 0, .barrier = [this] { groups_.world->barrier(); }});
}

void Trainer::load(const RestartPoint& restart) {
  const checkpoint::Header header = checkpoint::load(
      *restart.checkpoint, *groups_.world, checkpoint::checkpoint_tensors(parameters_, optimizer_));
  state_ = RunState::from(header);
  optimizer_.set_step(state_.applied_iterations);
  optimizer_.gather_weights();
  last_checkpoint_ = restart.checkpoint;
  saved_iteration_ = state_.iteration;
}

// ---- the loop

StopReason Trainer::run() {
  StopReason stop = stop_before_start();
  interval_ = {};
  const std::int64_t first_iteration = state_.iteration;
  while (stop == StopReason::none && state_.iteration < total_iterations_) {
    report(step());
    evaluate_if_due(/*at_end=*/false);
    if (due(deck_.checkpoint.every, state_.iteration, deck_)) save();
    stop = stop_after_step();
  }
  if (stop == StopReason::none) {
    stop = StopReason::finished;
    if (state_.iteration > first_iteration) evaluate_if_due(/*at_end=*/true);
  }
  const bool wanted = deck_.checkpoint.at_end || exit_code(stop) == ExitCode::stopped_early;
  if (wanted && saved_iteration_ != state_.iteration) save();
  return stop;
}

Trainer::StepResult Trainer::step() {
  const Stopwatch watch;
  parameters_.zero_gradients();
  const pipeline::LossSum loss =
      runner_.train(train_data_, sampler_, state_.consumed_samples, schedule_);
  optimizer_.reduce_gradients();
  const double norm = optimizer_.gradient_norm();

  const bool by_samples = deck_.schedule.dialect == deck::ScheduleDialect::megatron;
  const auto rate = [&] {
    return learning_rate_.at(by_samples ? state_.applied_samples : state_.applied_iterations);
  };
  // A gradient that is not finite would spoil the weights for good: the step is skipped and
  // counted.
  const bool applied = std::isfinite(norm);
  if (applied) {
    optimizer_.update(rate(), norm);
    ++state_.applied_iterations;
    state_.applied_samples += deck_.batch.global;
  } else {
    ++state_.skipped;
  }
  if (!std::isfinite(loss.mean())) ++state_.nan;
  ++state_.iteration;
  state_.consumed_samples += deck_.batch.global;
  longest_step_ = std::max(longest_step_, watch.seconds());
  return {.loss = loss.mean(), .gradient_norm = norm, .learning_rate = rate(), .applied = applied};
}

// ---- reports

void Trainer::report(const StepResult& result) {
  const bool finite = std::isfinite(result.loss);
  interval_.loss += finite ? result.loss : 0.0;
  interval_.nan += !finite;
  interval_.skipped += !result.applied;
  ++interval_.iterations;
  if (state_.iteration % deck_.log.every != 0 && state_.iteration != total_iterations_) return;

  const double seconds = interval_.watch.seconds() / static_cast<double>(interval_.iterations);
  const double tokens = static_cast<double>(plan_.tokens_per_step);
  const deck::Model& model = deck_.model;
  const double flops = tokens * report::model_flops_per_token(model.layers, model.hidden,
                                                              model.sequence, vocabulary_.size);
  const std::int64_t counted = interval_.iterations - interval_.nan;
  if (reporter_)
    reporter_->on(report::TrainEvent{
        .iteration = state_.iteration,
        .consumed_samples = state_.consumed_samples,
        .consumed_tokens = state_.consumed_samples * model.sequence,
        .loss = counted > 0 ? interval_.loss / static_cast<double>(counted) : std::nan(""),
        .grad_norm = result.gradient_norm,
        .learning_rate = result.learning_rate,
        .global_batch = deck_.batch.global,
        .ms = seconds * 1e3,
        .tokens_per_second = tokens / seconds,
        .model_tflops_per_rank = flops / seconds / 1e12 / groups_.layout.ranks(),
        .skipped = interval_.skipped,
        .nan = interval_.nan});
  if (deck_.log.memory && !memory_reported_) report_memory();
  interval_ = {};
}

void Trainer::report_memory() {
  memory_reported_ = true;
  const ProcessMemory memory = process_memory();
  // The rank furthest above or nearest to its plan is of no interest; the largest one decides
  // whether the job fits.
  const auto largest = [&](std::int64_t bytes) {
    return static_cast<std::int64_t>(
        groups_.world->all_reduce(static_cast<double>(bytes), comm::Reduce::max));
  };
  const report::MemoryEvent event{
      .iteration = state_.iteration,
      .planned_bytes = static_cast<std::int64_t>(plan_.largest().memory.total()),
      .resident_bytes = largest(memory.resident),
      .peak_bytes = largest(memory.peak)};
  if (reporter_) reporter_->on(event);
}

// ---- evaluation

void Trainer::evaluate_if_due(bool at_end) {
  const std::int64_t window = deck_.evaluate.iterations * deck_.batch.global;
  if (at_end) {
    if (!deck_.evaluate.at_end) return;
    const bool just_done = due(deck_.evaluate.every, state_.iteration, deck_);
    if (valid_data_ && !just_done) {
      const std::int64_t every = plan::run_length(deck_).evaluate_every;
      evaluate(data::Split::valid, *valid_data_, every ? state_.iteration / every * window : 0);
    }
    if (test_data_) evaluate(data::Split::test, *test_data_, 0);
  } else if (valid_data_ && due(deck_.evaluate.every, state_.iteration, deck_)) {
    const std::int64_t count = state_.iteration / deck::in_iterations(*deck_.evaluate.every, deck_);
    evaluate(data::Split::valid, *valid_data_, (count - 1) * window);
  }
}

void Trainer::evaluate(data::Split split, const data::GptDataset& dataset,
                       std::int64_t first_sample) {
  const Stopwatch watch;
  pipeline::LossSum sum;
  for (std::int64_t i = 0; i < deck_.evaluate.iterations; ++i) {
    const pipeline::LossSum batch =
        runner_.evaluate(dataset, sampler_, first_sample + i * deck_.batch.global);
    sum.loss += batch.loss;
    sum.tokens += batch.tokens;
  }
  if (reporter_)
    reporter_->on(report::EvalEvent{.iteration = state_.iteration,
                                    .split = std::string(data::name_of(split)),
                                    .loss = sum.mean()});
  interval_.watch.exclude(watch.seconds());
}

// ---- checkpoints

void Trainer::save() {
  const Stopwatch watch;
  const std::filesystem::path folder = checkpoint_folder(deck_);
  const std::filesystem::path path = checkpoint::step_path(folder, state_.iteration);
  checkpoint::save(path, *groups_.world, state_.attributes(), deck::print_deck(deck_),
                   checkpoint::checkpoint_tensors(parameters_, optimizer_));
  last_checkpoint_ = path;
  saved_iteration_ = state_.iteration;
  last_save_ = watch.seconds();
  if (reporter_) {
    reporter_->on(report::CheckpointEvent{
        .iteration = state_.iteration,
        .path = path.string(),
        .bytes = static_cast<std::int64_t>(std::filesystem::file_size(path)),
        .seconds = last_save_});
    std::optional<std::int64_t> keep_every;
    if (deck_.checkpoint.keep_every)
      keep_every = deck::in_iterations(*deck_.checkpoint.keep_every, deck_);
    checkpoint::retain(folder, deck_.checkpoint.keep, keep_every);
  }
  interval_.watch.exclude(watch.seconds());
}

// ---- stops

bool Trainer::sees_kill_switch() const {
  // Rank 0 alone looks: on a shared file system the others might see another answer.
  return groups_.world->rank() == 0 && deck_.train.kill_switch &&
         std::filesystem::exists(*deck_.train.kill_switch);
}

StopReason Trainer::stop_before_start() {
  const bool kill = groups_.world->all_reduce(sees_kill_switch(), comm::Reduce::max) > 0.0;
  return kill ? StopReason::kill_switch : StopReason::none;
}

StopReason Trainer::stop_after_step() {
  const double elapsed = options_.since_start.seconds();
  // Before the first save its time is guessed from a disk of 500 MB/s and fp32 weights and moments.
  const double save =
      last_save_ > 0.0 ? last_save_ : 12.0 * static_cast<double>(plan_.parameters) / 500e6;
  const double needed = elapsed + longest_step_ + save;
  double asked[4] = {static_cast<double>(stop_signal()),
                     static_cast<double>(options_.time_limit && needed >= *options_.time_limit),
                     static_cast<double>(deck_.train.exit_duration &&
                                         elapsed >= deck::in_seconds(*deck_.train.exit_duration)),
                     static_cast<double>(sees_kill_switch())};
  groups_.world->all_reduce(asked, 4, DType::f64, comm::Reduce::max);
  if (state_.iteration == total_iterations_) return StopReason::none;
  if (asked[0] > 0.0) return StopReason::signal;
  if (asked[3] > 0.0) return StopReason::kill_switch;
  if (asked[2] > 0.0) return StopReason::exit_duration;
  if (asked[1] > 0.0) return StopReason::time_limit;
  if (due(deck_.train.exit_interval, state_.iteration, deck_)) return StopReason::exit_interval;
  return StopReason::none;
}

}  // namespace trireme::train
