// The loss scale: a factor on the loss that keeps fp16 gradients within their range.
#pragma once

#include <cstdint>

#include "deck/choices.hpp"

namespace trireme::optim {

/// The rules of Megatron-LM or of DeepSpeed: see LossScaler.
using deck::LossScaleDialect;

/// How the scale reacts to overflows.
struct LossScaleParameters {
  bool dynamic = false;  ///< false: always the initial scale
  LossScaleDialect dialect = LossScaleDialect::megatron;
  double initial = 1.0;
  double minimum = 1.0;
  std::int64_t window = 1000;   ///< good iterations before the scale doubles
  std::int64_t hysteresis = 2;  ///< overflows before the scale halves
};

/// The state of a scaler, as a checkpoint saves it.
struct LossScaleState {
  double scale = 1.0;
  std::int64_t good_iterations =
      0;  ///< since the last overflow; in Megatron's dialect also since the last doubling
  std::int64_t hysteresis_left = 0;  ///< 0: the scale is constant

  bool operator==(const LossScaleState&) const = default;
};

/// A constant scale, or one that halves after overflows and doubles after a window without any.
/// Only a doubling restores the hysteresis.
///
/// The dialects differ in two cases. An overflow at the minimum scale ends the run with DeepSpeed
/// and is ignored by Megatron-LM. After a restart with a window shorter than the good iterations so
/// far, the scale doubles at the next multiple of the window with DeepSpeed, never with
/// Megatron-LM, which compares for equality. Sources: Megatron-LM, DynamicGradScaler; DeepSpeed,
/// DynamicLossScaler.
class LossScaler {
 public:
  /// Throws InternalError unless minimum and initial are positive, window and hysteresis at
  /// least 1.
  explicit LossScaler(const LossScaleParameters& parameters);

  double scale() const { return state_.scale; }
  bool is_dynamic() const { return parameters_.dynamic; }
  const LossScaleState& state() const { return state_; }
  /// Whether overflows can still lower the scale.
  bool can_fall() const { return is_dynamic() && scale() > parameters_.minimum; }

  /// Resumes from a checkpoint's state, if both that scale and this one are dynamic.
  void restore(const LossScaleState& state);

  /// Called after each iteration: `overflow` says that its gradients were not finite. Throws Error
  /// (exit 1), with DeepSpeed's text, on an overflow at the minimum scale in its dialect.
  void update(bool overflow);

 private:
  void shrink();

  LossScaleParameters parameters_;
  LossScaleState state_;
};

}  // namespace trireme::optim
