// The learning rate and the weight decay as functions of the run's progress.
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

}  // namespace trireme::optim
