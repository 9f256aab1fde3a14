#include "train/training_log.hpp"

#include <cmath>

#include "train/measurements.hpp"

namespace trireme::train {
namespace {

using device::Phase;

/// The timers that are reported with each training line, in Megatron-LM's order.
constexpr Phase kIterationPhases[] = {
    Phase::forward_backward, Phase::forward,       Phase::backward, Phase::batch,
    Phase::grads_sync,       Phase::gradient_norm, Phase::update,   Phase::optimizer};

}  // namespace

TrainingLog::TrainingLog(const deck::Deck& deck, const plan::Vocabulary& vocabulary,
                         const plan::RunPlan& plan, comm::Groups& groups, device::Backend& backend,
                         report::Reporter* reporter)
    : deck_(deck),
      vocabulary_(vocabulary),
      plan_(plan),
      groups_(groups),
      backend_(backend),
      reporter_(reporter) {
  if (deck_.log.timers) timers_.emplace(backend);
}

void TrainingLog::start() {
  if (deck_.log.gpu_every || deck_.log.rank_files) gpu_watch_.emplace(deck_, *groups_.world);
  interval_ = {};
}

void TrainingLog::add(const StepResult& result) {
  const bool finite = std::isfinite(result.loss);
  if (finite) interval_.loss += result.loss;
  if (finite && result.applied) {
    interval_.applied_loss += result.loss;
    ++interval_.applied;
  }
  interval_.nan += !finite;
  interval_.skipped += !result.applied;
  ++interval_.iterations;
  interval_.samples += result.samples;
}

void TrainingLog::report(const StepResult& result, const RunState& state,
                         std::optional<double> parameter_norm) {
  report::TrainEvent event = train_event(result, state);
  event.parameter_norm = parameter_norm;
  if (reporter_) reporter_->on(event);
  if (deck_.log.memory && !memory_reported_) report_memory(state.iteration);
  report_timers(kIterationPhases, state.iteration, interval_.iterations);
  interval_ = {};
}

double TrainingLog::mean_loss() const {
  if (interval_.applied > 0) return interval_.applied_loss / static_cast<double>(interval_.applied);
  const std::int64_t finite = interval_.iterations - interval_.nan;
  return finite > 0 ? interval_.loss / static_cast<double>(finite) : std::nan("");
}

report::TrainEvent TrainingLog::train_event(const StepResult& result, const RunState& state) const {
  const double seconds = interval_.watch.seconds();
  const deck::Model& model = deck_.model;
  const double tokens = static_cast<double>(interval_.samples * model.sequence);
  const double flops = tokens * model::flops_per_token(deck_, vocabulary_.size);
  const double flops_per_rank = flops / seconds / groups_.layout.ranks();
  const double peak = device::peak_flops(backend_.gpu_name(), plan::compute_dtype(deck_));
  return {.iteration = state.iteration,
          .consumed_samples = state.consumed_samples,
          .consumed_tokens = state.consumed_samples * model.sequence,
          .loss = mean_loss(),
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

void TrainingLog::report_memory(std::int64_t iteration) {
  memory_reported_ = true;
  report::MemoryEvent event = memory_in_use(backend_, groups_);
  event.iteration = iteration;
  event.planned_bytes = static_cast<std::int64_t>(plan_.largest().memory.total());
  if (reporter_) reporter_->on(event);
}

void TrainingLog::report_gpus(std::int64_t iteration) {
  report::GpuEvent event = gpu_watch_->gather();
  event.iteration = iteration;
  if (reporter_ && !event.gpus.empty()) reporter_->on(event);
}

void TrainingLog::report_timer(Phase phase, std::int64_t iteration) {
  report_timers({&phase, 1}, iteration);
}

void TrainingLog::report_timers(std::span<const Phase> phases, std::int64_t iteration,
                                std::int64_t iterations) {
  if (!timers_) return;
  report::TimersEvent event =
      timers_event(*timers_, phases, static_cast<double>(iterations), *groups_.world);
  event.iteration = iteration;
  if (reporter_) reporter_->on(event);
}

}  // namespace trireme::train
