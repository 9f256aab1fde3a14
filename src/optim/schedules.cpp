#include "optim/schedules.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.hpp"

namespace trireme::optim {
namespace {

/// Megatron-LM v1.1.5's rounded ln 2: the exponential decay halves the peak.
constexpr double kHalving = 0.693;

}  // namespace

LearningRateSchedule::LearningRateSchedule(const LearningRateParameters& parameters)
    : parameters_(parameters) {
  if (parameters.type == ScheduleType::lr_range_test) {
    TRIREME_CHECK(parameters.minimum > 0 && parameters.range_test.step >= 1,
                  "range test from {} in steps of {}", parameters.minimum,
                  parameters.range_test.step);
    return;
  }
  TRIREME_CHECK(parameters.warmup >= 0 && parameters.warmup < static_cast<double>(parameters.decay),
                "learning-rate warm-up of {} with a decay of {}", parameters.warmup,
                parameters.decay);
  TRIREME_CHECK(parameters.minimum >= 0 && parameters.minimum <= parameters.peak,
                "learning rate from {} down to {}", parameters.peak, parameters.minimum);
  const double last = parameters.wsd.length;
  TRIREME_CHECK(parameters.type != ScheduleType::wsd ||
                    (last > 0 && parameters.warmup + last <=
                                     static_cast<double>(parameters.decay) * (1 + 1e-12)),
                "a last part of {} after a warm-up of {} in {}", last, parameters.warmup,
                parameters.decay);
}

double LearningRateSchedule::at(std::int64_t position) const {
  TRIREME_CHECK(position >= 0, "position {} of the learning-rate schedule", position);
  if (parameters_.type == ScheduleType::lr_range_test) return range_test(position);
  const auto real = static_cast<double>(position);
  if (parameters_.type == ScheduleType::wsd) return wsd(real);
  return parameters_.dialect == ScheduleDialect::megatron ? megatron(real) : v1(real);
}

double LearningRateSchedule::megatron(double position) const {
  const auto& [type, dialect, peak, minimum, warmup, decay, test, last] = parameters_;
  const auto end = static_cast<double>(decay);
  if (warmup > 0 && position <= warmup) return peak * position / warmup;
  if (type == ScheduleType::constant) return peak;
  if (position > end) return minimum;
  const double ratio = (position - warmup) / (end - warmup);
  switch (type) {
    case ScheduleType::inverse_square_root:
      return inverse_square_root(position);
    case ScheduleType::exponential:
      return std::max(peak * std::exp(-kHalving * ratio), minimum);
    case ScheduleType::linear:
      return minimum + (1 - ratio) * (peak - minimum);
    case ScheduleType::cosine:
      return minimum + 0.5 * (std::cos(std::numbers::pi * ratio) + 1) * (peak - minimum);
    case ScheduleType::constant:
    case ScheduleType::lr_range_test:
    case ScheduleType::wsd:
      break;
  }
  throw InternalError("the decay {} is computed elsewhere", static_cast<int>(type));
}

double LearningRateSchedule::v1(double position) const {
  const auto& [type, dialect, peak, minimum, warmup, decay, test, last] = parameters_;
  const auto end = static_cast<double>(decay);
  const double reached = std::min(position, end - warmup);
  if (warmup > 0 && position <= warmup) return peak * reached / warmup;
  if (type == ScheduleType::constant) return peak;
  const double since = reached - warmup;
  switch (type) {
    case ScheduleType::inverse_square_root:
      return inverse_square_root(reached);
    case ScheduleType::exponential:
      return std::max(peak * std::exp(-kHalving * since / end), minimum);
    case ScheduleType::linear:
      return std::max(peak * (end - since) / end, minimum);
    case ScheduleType::cosine:
      return std::max(peak / 2 * (std::cos(std::numbers::pi * since / end) + 1), minimum);
    case ScheduleType::constant:
    case ScheduleType::lr_range_test:
    case ScheduleType::wsd:
      break;
  }
  throw InternalError("the decay {} is computed elsewhere", static_cast<int>(type));
}

double LearningRateSchedule::wsd(double position) const {
  const auto& [type, dialect, peak, minimum, warmup, decay, test, last] = parameters_;
  const auto end = static_cast<double>(decay);
  if (warmup > 0 && position <= warmup) return peak * position / warmup;
  if (position > end) return minimum;
  const double r = std::max(position - (end - last.length), 0.0) / last.length;
  const auto shape = [r, form = last.shape] {
    switch (form) {
      case WsdShape::linear:
        return 1 - r;
      case WsdShape::cosine:
        return 0.5 * (std::cos(std::numbers::pi * r) + 1);
      case WsdShape::exponential:
        return 2 * std::pow(0.5, r) - 1;
      case WsdShape::minus_sqrt:
        return 1 - std::sqrt(r);
    }
    throw InternalError("unknown shape {}", static_cast<int>(form));
  };
  return minimum + shape() * (peak - minimum);
}

double LearningRateSchedule::inverse_square_root(double position) const {
  const auto root = [](double count) { return std::sqrt(std::max(count, 1.0)); };
  return std::max(parameters_.peak * root(parameters_.warmup) / root(position),
                  parameters_.minimum);
}

double LearningRateSchedule::range_test(std::int64_t position) const {
  const RangeTest& test = parameters_.range_test;
  const double steps = static_cast<double>(position) / static_cast<double>(test.step);
  return parameters_.minimum * (1 + test.rate * (test.staircase ? std::floor(steps) : steps));
}

WeightDecaySchedule::WeightDecaySchedule(const WeightDecayParameters& parameters)
    : parameters_(parameters) {
  const auto& [type, start, end, length] = parameters;
  TRIREME_CHECK(length >= 1 && (type != RampType::constant || start == end),
                "weight decay from {} to {} in {} steps", start, end, length);
}

double WeightDecaySchedule::at(std::int64_t position) const {
  const auto& [type, start, end, length] = parameters_;
  if (type == RampType::constant || position > length) return end;
  const double ratio = static_cast<double>(position) / static_cast<double>(length);
  const double risen =
      type == RampType::linear ? ratio : 0.5 * (std::cos(std::numbers::pi * (1 - ratio)) + 1);
  return start + risen * (end - start);
}

// ---- the loss scale

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
  if (!parameters_.dynamic || state.hysteresis_left == 0) return;
  state_ = state;
  // The parameters may have changed since.
  state_.scale = std::max(state.scale, parameters_.minimum);
  state_.hysteresis_left = std::min(state.hysteresis_left, parameters_.hysteresis);
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
                               : state_.good_iterations >= parameters_.window;
  if (!grows) return;
  if (!deepspeed) state_.good_iterations = 0;
  state_.hysteresis_left = parameters_.hysteresis;
  state_.scale *= 2;
}

void LossScaler::shrink() {
  if (parameters_.dialect == LossScaleDialect::deepspeed && state_.scale == parameters_.minimum)
    throw CodedError<ExitCode::diverged>(
        "Current loss scale already at minimum - cannot decrease scale anymore. Exiting run. "
        "(precision.loss_scale.minimum = {}: gradients overflow at every scale; "
        "precision.compute: bf16 needs none)",
        parameters_.minimum);
  state_.scale = std::max(state_.scale / 2, parameters_.minimum);
}

}  // namespace trireme::optim
