#include "optim/loss_scaler.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace trireme::optim {

LossScaler::LossScaler(const LossScaleParameters& parameters)
    : parameters_(parameters),
      state_{.scale = parameters.initial,
             .hysteresis_left = parameters.dynamic ? parameters.hysteresis : 0} {
  TRIREME_CHECK(parameters.initial > 0 && parameters.minimum > 0 && parameters.window >= 1 &&
                    parameters.hysteresis >= 1,
                "loss scale from {} to {} or more, window {}, hysteresis {}", parameters.initial,
                parameters.minimum, parameters.window, parameters.hysteresis);
}

void LossScaler::restore(const LossScaleState& state) {
  if (parameters_.dynamic && state.hysteresis_left > 0) state_ = state;
}

void LossScaler::update(bool overflow) {
  if (!parameters_.dynamic) return;
  const bool deepspeed = parameters_.dialect == LossScaleDialect::deepspeed;
  if (overflow) {
    state_.good_iterations = 0;
    if (state_.hysteresis_left > 1)
      --state_.hysteresis_left;
    else
      shrink();
    return;
  }
  ++state_.good_iterations;
  const bool grows = deepspeed ? state_.good_iterations % parameters_.window == 0
                               : state_.good_iterations == parameters_.window;
  if (!grows) return;
  if (!deepspeed) state_.good_iterations = 0;
  state_.hysteresis_left = parameters_.hysteresis;
  state_.scale *= 2;
}

void LossScaler::shrink() {
  if (parameters_.dialect == LossScaleDialect::deepspeed && state_.scale == parameters_.minimum)
    throw CodedError<ExitCode::diverged>(
        "Current loss scale already at minimum - cannot decrease scale anymore. Exiting run. "
        "(precision.loss_scale.minimum = {}: gradients overflow at every scale; lower "
        "schedule.peak, or train with precision.compute: bf16)",
        parameters_.minimum);
  state_.scale = std::max(state_.scale / 2, parameters_.minimum);
}

}  // namespace trireme::optim
