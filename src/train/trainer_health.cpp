// Whether training still makes sense: bad iterations in a row, weights that are not finite or
// absurdly large.
#include <cmath>

#include "train/non_finite.hpp"
#include "train/trainer.hpp"

namespace trireme::train {

StopReason Trainer::judge(const StepResult& result) {
  if (reports_at(state_.iteration) && !check_weights())
    return diverged(fmt::format("the weights of iteration {} are not finite", state_.iteration));
  if (!result.is_bad()) {
    // An iteration that is skipped while the loss scale is searched for tells nothing.
    if (result.applied) {
      state_.bad_iterations = 0;
      delete_old_checkpoints();
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
