#include "optim/lr_schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.hpp"

namespace trireme::optim {

LearningRateSchedule::LearningRateSchedule(const LearningRateParameters& parameters)
    : parameters_(parameters) {
  TRIREME_CHECK(parameters.warmup >= 0 && parameters.warmup < parameters.decay,
                "learning-rate warm-up of {} with a decay of {}", parameters.warmup,
                parameters.decay);
  TRIREME_CHECK(parameters.minimum >= 0 && parameters.minimum <= parameters.peak,
                "learning rate from {} down to {}", parameters.peak, parameters.minimum);
}

double LearningRateSchedule::at(std::int64_t position) const {
  TRIREME_CHECK(position >= 0, "position {} of the learning-rate schedule", position);
  return parameters_.dialect == ScheduleDialect::megatron ? megatron(position) : v1(position);
}

double LearningRateSchedule::megatron(std::int64_t position) const {
  const auto& [type, dialect, peak, minimum, warmup, decay] = parameters_;
  if (warmup > 0 && position <= warmup)
    return peak * static_cast<double>(position) / static_cast<double>(warmup);
  if (type == DecayType::constant) return peak;
  if (position > decay) return minimum;
  const double ratio = static_cast<double>(position - warmup) / static_cast<double>(decay - warmup);
  const double remaining =
      type == DecayType::linear ? 1 - ratio : 0.5 * (std::cos(std::numbers::pi * ratio) + 1);
  return minimum + remaining * (peak - minimum);
}

double LearningRateSchedule::v1(std::int64_t position) const {
  const auto& [type, dialect, peak, minimum, warmup, decay] = parameters_;
  const double reached = static_cast<double>(std::min(position, decay - warmup));
  if (warmup > 0 && position <= warmup) return peak * reached / static_cast<double>(warmup);
  if (type == DecayType::constant) return peak;
  const double end = static_cast<double>(decay);
  const double since = reached - static_cast<double>(warmup);
  const double rate = type == DecayType::linear
                          ? peak * (end - since) / end
                          : peak / 2 * (std::cos(std::numbers::pi * since / end) + 1);
  return std::max(rate, minimum);
}

}  // namespace trireme::optim
