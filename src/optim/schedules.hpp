// What changes from iteration to iteration: the learning rate and the weight decay as functions of
// the run's progress, and the loss scale.
#pragma once

#include <cstdint>

#include "deck/choices.hpp"

namespace trireme::optim {

/// How the learning rate decays after the warm-up: not at all, linearly, along half a cosine,
/// exponentially to half the peak, with the inverse square root of the position; not at all until
/// its last part (WSD: warm-up, stable, decay); or a learning-rate range test, which rises.
using deck::ScheduleType;

/// The formulas of current Megatron-LM, or of Megatron-LM v1.1.5, which divides by the length of
/// warm-up and decay together and therefore ends above the minimum. Only v1.1.5 has the exponential
/// decay and only current Megatron-LM the inverse square root; each is also available in the other
/// dialect, with that dialect's progress and end.
using deck::ScheduleDialect;

/// A test of learning rates: minimum * (1 + rate * position / step), the quotient rounded down when
/// `staircase`. Source: DeepSpeed, LRRangeTest; Smith, "Cyclical learning rates for training neural
/// networks" (2017), section 3.3.
struct RangeTest {
  std::int64_t step = 1;
  double rate = 1;
  bool staircase = false;
};

/// The last part of a WSD schedule, with r its progress from 0 to 1: the rate falls from the peak
/// to the minimum with 1 - r, (1 + cos(pi r)) / 2, 2 (1/2)^r - 1 or 1 - sqrt(r). Sources: Hu et
/// al., "MiniCPM" (2024), section 4; Haegele et al., "Scaling laws and compute-optimal training
/// beyond fixed training durations" (2024); the formulas are those of Megatron-LM's
/// OptimizerParamScheduler.
using deck::WsdShape;
struct WsdDecay {
  double length = 0;  ///< of the last part, which ends at LearningRateParameters::decay
  WsdShape shape = WsdShape::linear;
};

/// Lengths count samples in the megatron dialect and iterations in the v1 dialect.
struct LearningRateParameters {
  ScheduleType type = ScheduleType::cosine;
  ScheduleDialect dialect = ScheduleDialect::megatron;
  double peak = 0;  ///< not used by a range test
  double minimum = 0;
  double warmup = 0;       ///< length of the linear rise from 0 to the peak; below `decay`
  std::int64_t decay = 0;  ///< where the decay ends, counted from the start of the run
  RangeTest range_test = {};
  WsdDecay wsd = {};
};

/// Warm-up followed by decay, or a range test. Only applied updates advance the position: skipped
/// iterations do not count. The first iteration runs with at(0), which is 0 under
/// warm-up.
class LearningRateSchedule {
 public:
  /// Throws InternalError unless 0 <= warmup < decay and 0 <= minimum <= peak; of a range test,
  /// unless minimum > 0 and step >= 1; of WSD, unless its last part fits after the warm-up.
  explicit LearningRateSchedule(const LearningRateParameters& parameters);

  /// The rate after `position` samples (megatron) or iterations (v1) whose updates were applied.
  /// After `decay` it stays at its last value; a constant schedule stays at the peak. Throws
  /// InternalError for a negative position.
  double at(std::int64_t position) const;

 private:
  double megatron(double position) const;
  double v1(double position) const;
  double wsd(double position) const;
  double range_test(std::int64_t position) const;
  /// The peak times sqrt(warmup / position).
  double inverse_square_root(double position) const;

  LearningRateParameters parameters_;
};

/// How the weight decay changes from start to end: not at all, linearly, or along half a cosine.
using deck::RampType;

/// `length` counts samples or iterations, as the learning-rate schedule does.
struct WeightDecayParameters {
  RampType type = RampType::constant;
  double start = 0;
  double end = 0;
  std::int64_t length = 1;  ///< of the run: where `end` is reached
};

/// A ramp between two weight decays. Source: Megatron-LM, OptimizerParamScheduler.get_wd.
class WeightDecaySchedule {
 public:
  /// Throws InternalError unless length >= 1, and start == end of a constant one.
  explicit WeightDecaySchedule(const WeightDecayParameters& parameters);

  /// The weight decay at `position`, as LearningRateSchedule::at().
  double at(std::int64_t position) const;

 private:
  WeightDecayParameters parameters_;
};

// ---- the loss scale: a factor on the loss that keeps fp16 gradients within their range

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

  /// Resumes from a checkpoint's state, if both that scale and this one are dynamic; a scale below
  /// the minimum is set to it.
  void restore(const LossScaleState& state);

  /// Called after each iteration: `overflow` says that its gradients were not finite. Throws
  /// CodedError<ExitCode::diverged>, with DeepSpeed's text, on an overflow at the minimum scale in
  /// its dialect.
  void update(bool overflow);

 private:
  void shrink();

  LossScaleParameters parameters_;
  LossScaleState state_;
};

}  // namespace trireme::optim
