// One iteration of a Trainer: from a batch to new weights, and whether it has diverged.
#include <fmt/format.h>

#include <cmath>

#include "core/error.hpp"
#include "train/startup/startup.hpp"
#include "train/trainer.hpp"

namespace trireme::train {

using device::Phase;
using device::timed;

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
  const double loss_scale = loss_scaler_.scale();
  runner_.set_loss_scale(loss_scale);
  double passes = 0.0, reduction = 0.0;
  const auto run_passes = [&] {
    parameters_.zero_gradients();
    watchdog_->set_phase("forward and backward", state_.iteration + 1);
    const LossSum loss = timed(log_.timers(), Phase::forward_backward, [&] {
      return runner_.train(*train_data_, batch, state_.next_sample(), schedule_, &prefetcher_);
    });
    if (verifier_) verifier_->observer().before_reduction();
    passes = mark();
    watchdog_->set_phase("the gradient reduction", state_.iteration + 1);
    timed(log_.timers(), Phase::grads_sync, [&] { optimizer_.reduce_gradients(); });
    if (verifier_) verifier_->observer().after_reduction();
    reduction = mark();
    return loss;
  };
  std::optional<double> norm;
  LossSum loss;
  if (verifier_) {
    const StepVerifier::Result verified =
        verifier_->run({state_.iteration + 1, batch, state_.next_sample()}, loss_scaler_.can_fall(),
                       run_passes, [&] { return gradient_norm(loss_scale); });
    loss = verified.loss;
    norm = verified.gradient_norm;
    diagnosis_ = verified.problem;
    if (diagnosis_.empty()) diagnosis_ = verifier_->compare_weights(state_.iteration + 1);
    if (!diagnosis_.empty()) return {};
  } else {
    loss = run_passes();
  }
  watchdog_->set_phase("the update", state_.iteration + 1);
  StepResult result = timed(log_.timers(), Phase::optimizer, [&] {
    return update_weights(loss.mean(), loss_scale, batch.global_batch, norm);
  });
  result.loss = loss.mean();
  if (deck_.model.bert.binary_head == true) result.sentence_loss = loss.sentence_mean();
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
  report_timeline(/*ends=*/iteration == end_.iteration);
  return result;
}

void Trainer::report_timeline(bool ends) {
  if (!options_.timeline) return;
  const Stopwatch watch;
  const auto event = options_.timeline->end_iteration(state_.iteration, ends);
  if (event && reporter_) reporter_->on(*event);
  log_.exclude(watch.seconds());
}

double Trainer::gradient_norm(double loss_scale) {
  return timed(log_.timers(), Phase::gradient_norm,
               [&] { return optimizer_.gradient_norm(loss_scale); });
}

StepResult Trainer::update_weights(double loss, double loss_scale, std::int64_t samples,
                                   std::optional<double> norm) {
  StepResult result{.samples = samples};
  result.gradient_norm = norm ? *norm : gradient_norm(loss_scale);
  const bool reports = reports_at(state_.iteration + 1);
  if (deck_.log.norms != deck::LogNorms::none && reports) {
    result.gradient_zeros = optimizer_.gradient_zeros();
    result.largest_logit = runner_.largest_logit();
  }
  const auto position = [&] {
    return plan::counts_samples(deck_) ? state_.applied_samples : state_.applied_iterations;
  };
  // A gradient that is not finite would make the weights unusable: the step is skipped and
  // counted.
  const bool is_finite = std::isfinite(result.gradient_norm);
  if (is_finite)
    result.spike = find_spike(deck_.train.spike, state_.spikes, loss, result.gradient_norm);
  result.applied = is_finite && !result.spike;
  if (result.applied) {
    if (deck_.train.spike.above && std::isfinite(loss))
      state_.spikes.add(loss, result.gradient_norm, *deck_.train.spike.window);
    checkpoints_.finish_copies();
    if (deck_.log.norms == deck::LogNorms::layers && reports) result.layer_norms.emplace();
    timed(log_.timers(), Phase::update, [&] {
      optimizer_.update({.learning_rate = learning_rate_.at(position()),
                         .weight_decay = weight_decay_.at(position()),
                         .gradient_norm = result.gradient_norm,
                         .loss_scale = loss_scale},
                        result.layer_norms ? &*result.layer_norms : nullptr);
    });
    ++state_.applied_iterations;
    state_.applied_samples += samples;
  } else {
    ++state_.skipped;
    state_.spikes.skipped += result.spike.has_value();
    result.searches_scale = !is_finite && loss_scaler_.can_fall();
  }
  try {
    loss_scaler_.update(/*overflow=*/!is_finite);
  } catch (const CodedError<ExitCode::diverged>& error) {
    result.diverged = error.what();  // on every rank: the norm is the same
  }
  state_.loss_scale = loss_scaler_.state();
  result.learning_rate = learning_rate_.at(position());
  result.loss_scale = loss_scaler_.scale();
  return result;
}

void Trainer::forward_only() { runner_.evaluate(*train_data_, next_batch(), state_.next_sample()); }

// ---- divergence

StopReason Trainer::judge(const StepResult& result) {
  if (result.diverged) return diverged(*result.diverged);
  if (reports_at(state_.iteration) && !check_weights())
    return diverged(fmt::format("the weights of iteration {} are not finite", state_.iteration));
  if (!result.is_bad()) {
    // An iteration that is skipped while the loss scale is searched for tells nothing.
    if (result.applied) {
      state_.bad_iterations = 0;
      delete_old_checkpoints();
      checkpoints_.delete_unused_local();
    }
    return StopReason::none;
  }
  ++state_.bad_iterations;
  const bool at_end = state_.iteration == end_.iteration && !std::isfinite(result.loss);
  if (state_.bad_iterations < deck_.train.diverged_after && !at_end) return StopReason::none;
  return diverged(
      fmt::format("{} iteration{} in a row up to iteration {} had no finite loss and "
                  "gradient (train.diverged_after = {})",
                  state_.bad_iterations, state_.bad_iterations == 1 ? "" : "s", state_.iteration,
                  deck_.train.diverged_after));
}

bool Trainer::check_weights() {
  // The root mean square of a model's weights is between 0.01 and 1.
  constexpr double kAbsurd = 100.0;
  const double norm = optimizer_.parameter_norm();
  if (!std::isfinite(norm)) return false;
  const double rms = norm / std::sqrt(static_cast<double>(plan_.parameters));
  const bool absurd = rms > kAbsurd;
  if (absurd && !warned_of_weights_)
    warn(
        fmt::format("the weights are absurdly large, {:.3g} in root mean square; the largest is {}",
                    rms, find_largest_weight(*groups_.world, backend_, parameters_, optimizer_)));
  warned_of_weights_ = absurd;
  return true;
}

StopReason Trainer::diverged(const std::string& what) {
  const std::string where = find_non_finite(*groups_.world, backend_, parameters_, optimizer_);
  diagnosis_ = fmt::format(
      "training diverged: {}; {}; resume from a checkpoint before that (--restart PATH) with a "
      "lower schedule.peak, or without the data that led there (train.skip)",
      what, where.empty() ? "all weights and gradients are finite" : where);
  warn(diagnosis_);
  return StopReason::diverged;
}

void Trainer::warn(const std::string& message) {
  if (reporter_)
    reporter_->on(report::WarningEvent{.iteration = state_.iteration, .message = message});
}

}  // namespace trireme::train
