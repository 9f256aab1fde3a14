// The weight decay as a function of how far the run has come.
#pragma once

#include <cstdint>

namespace trireme::optim {

/// How the weight decay goes from start to end: not at all, in a straight line, along half a
/// cosine.
enum class RampType { constant, linear, cosine };

/// `length` counts what the learning rate counts: samples or iterations.
struct WeightDecayParameters {
  RampType type = RampType::constant;
  double start = 0;
  double end = 0;
  std::int64_t length = 1;  ///< until the end is reached: the run's
};

/// A ramp between two weight decays. Source: Megatron-LM, OptimizerParamScheduler.get_wd.
class WeightDecaySchedule {
 public:
  /// Throws InternalError unless length >= 1, and start == end of a constant one.
  explicit WeightDecaySchedule(const WeightDecayParameters& parameters);

  /// The weight decay at `position`, counted as the learning rate's.
  double at(std::int64_t position) const;

 private:
  WeightDecayParameters parameters_;
};

}  // namespace trireme::optim
