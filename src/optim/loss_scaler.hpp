// The factor on the loss that keeps half-precision gradients within their range.
#pragma once

#include <cstdint>

namespace trireme::optim {

/// Whose rules: see LossScaler.
enum class LossScaleDialect { megatron, deepspeed };

/// How the scale follows overflows.
struct LossScaleParameters {
  bool dynamic = false;  ///< false: the initial scale for ever
  LossScaleDialect dialect = LossScaleDialect::megatron;
  double initial = 1.0;
  double minimum = 1.0;
  std::int64_t window = 1000;   ///< good iterations before the scale doubles
  std::int64_t hysteresis = 2;  ///< overflows before the scale halves
};

/// The state of a scaler that a checkpoint keeps.
struct LossScaleState {
  double scale = 1.0;
  std::int64_t good_iterations = 0;  ///< since the last overflow; Megatron's starts again at growth
  std::int64_t hysteresis_left = 0;  ///< 0: the scale is constant

  bool operator==(const LossScaleState&) const = default;
};

/// A constant scale, or one that halves after overflows and doubles after a window without any. The
/// hysteresis is filled up again only when the scale doubles.
///
/// The dialects differ where the least scale is reached, at which DeepSpeed gives up and
/// Megatron-LM goes on, and in when a window that a restart made shorter than the good iterations
/// so far ends: never in Megatron-LM, which waits for the very number, at its next multiple in
/// DeepSpeed. Sources: Megatron-LM, DynamicGradScaler; DeepSpeed, DynamicLossScaler.
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

  /// Goes on from a checkpoint's state, if both that scale and this one are dynamic.
  void restore(const LossScaleState& state);

  /// Ends an iteration, whose gradients were finite or overflowed. Throws Error (exit 1), with
  /// DeepSpeed's text, when its dialect overflows at the least scale.
  void update(bool overflow);

 private:
  void shrink();

  LossScaleParameters parameters_;
  LossScaleState state_;
};

}  // namespace trireme::optim
