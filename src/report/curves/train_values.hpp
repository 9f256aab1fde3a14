// What the dialects have in common: curves of single values of a TrainEvent.
#pragma once

#include <optional>

#include "report/metrics.hpp"

namespace trireme::report {

inline double real(std::int64_t value) { return static_cast<double>(value); }

/// A value of a TrainEvent; nothing when the event does not have it.
using TrainValue = std::optional<double> (*)(const TrainEvent&);

/// A value under the tag of a dialect.
struct TrainCurve {
  const char* tag;
  TrainValue value;
};

namespace train_values {

inline std::optional<double> loss(const TrainEvent& e) { return e.loss; }
inline std::optional<double> grad_norm(const TrainEvent& e) { return e.grad_norm; }
inline std::optional<double> learning_rate(const TrainEvent& e) { return e.learning_rate; }
inline std::optional<double> loss_scale(const TrainEvent& e) { return e.loss_scale; }
inline std::optional<double> global_batch(const TrainEvent& e) { return real(e.global_batch); }
inline std::optional<double> iteration_ms(const TrainEvent& e) { return e.ms; }
inline std::optional<double> iteration_seconds(const TrainEvent& e) { return e.ms / 1e3; }
inline std::optional<double> parameter_norm(const TrainEvent& e) { return e.parameter_norm; }
inline std::optional<double> gradient_zeros(const TrainEvent& e) {
  return e.gradient_zeros ? std::optional(real(*e.gradient_zeros)) : std::nullopt;
}

}  // namespace train_values
}  // namespace trireme::report
