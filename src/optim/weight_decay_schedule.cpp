#include "optim/weight_decay_schedule.hpp"

#include <cmath>
#include <numbers>

#include "core/error.hpp"

namespace trireme::optim {

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

}  // namespace trireme::optim
