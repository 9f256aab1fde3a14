// The learning rate as a function of how far the run has come.
#pragma once

#include <cstdint>

namespace trireme::optim {

enum class DecayType { constant, linear, cosine };

/// Whose formulas: today's Megatron-LM, or Megatron-LM v1.1.5, whose decay is stretched over the
/// warm-up too and therefore does not reach the minimum by itself.
enum class ScheduleDialect { megatron, v1 };

/// Lengths count samples in the megatron dialect and iterations in the v1 dialect.
struct LearningRateParameters {
  DecayType type = DecayType::cosine;
  ScheduleDialect dialect = ScheduleDialect::megatron;
  double peak = 0;
  double minimum = 0;
  std::int64_t warmup = 0;  ///< length of the linear rise from 0 to the peak; below `decay`
  std::int64_t decay = 0;   ///< where the decay ends, counted from the start of the run
};

/// Warm-up followed by decay. The position advances only when an update was applied: skipped
/// iterations do not count. The first iteration runs with at(0), which is 0 under warm-up.
class LearningRateSchedule {
 public:
  /// Throws InternalError unless 0 <= warmup < decay and 0 <= minimum <= peak.
  explicit LearningRateSchedule(const LearningRateParameters& parameters);

  /// The rate after `position` samples (megatron) or iterations (v1) whose updates were applied.
  /// After `decay` it stays where the decay ended; a constant schedule stays at the peak.
  double at(std::int64_t position) const;

 private:
  double megatron(std::int64_t position) const;
  double v1(std::int64_t position) const;

  LearningRateParameters parameters_;
};

}  // namespace trireme::optim
