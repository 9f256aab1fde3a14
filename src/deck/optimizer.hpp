// A deck's sections `optimizer` and `schedule`, and lengths of training. See deck.hpp.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "deck/choices.hpp"

namespace trireme::deck {

/// What a Length counts. A fraction is of schedule.decay.
enum class Unit { iterations, samples, seconds, minutes, hours, fraction };

constexpr auto names_of(Unit) {
  return std::to_array<std::string_view>(
      {"iterations", "samples", "seconds", "minutes", "hours", "fraction"});
}

/// A number with its unit, such as `2000 iterations` or `90 minutes`. A bare number of the deck has
/// already got the unit that `train` counts in.
struct Length {
  double value = 0;
  Unit unit = Unit::iterations;

  bool operator==(const Length&) const = default;
};

/// Factors of a hyperparameter for each group of parameters.
struct GroupFactors {
  double embedding = 1;
  double matrices = 1;  ///< of layers
  double head = 1;
  double vectors = 1;  ///< biases and norms

  bool operator==(const GroupFactors&) const = default;
};

/// Set for optimizer.type muon alone.
struct Muon {
  std::optional<MuonScale> scale;
  std::optional<bool> nesterov;

  bool operator==(const Muon&) const = default;
};

struct Optimizer {
  OptimizerType type{};
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  std::optional<double> momentum;  ///< set for sgd and muon alone
  Muon muon;
  double weight_decay = 0;
  GroupFactors rate;   ///< of the learning rate
  GroupFactors decay;  ///< of the weight decay
  double clip = 0;     ///< 0: no clipping

  bool operator==(const Optimizer&) const = default;
};

struct WeightDecay {
  double end = 0;
  RampType type{};

  bool operator==(const WeightDecay&) const = default;
};

/// Set for schedule.type lr-range-test alone.
struct RangeTest {
  std::optional<Length> step;
  std::optional<double> rate;
  std::optional<bool> staircase;

  bool operator==(const RangeTest&) const = default;
};

/// Set only with schedule.type = wsd.
struct Wsd {
  std::optional<Length> decay;  ///< of the last part; a fraction is of schedule.decay
  std::optional<WsdShape> shape;

  bool operator==(const Wsd&) const = default;
};

struct Schedule {
  ScheduleType type{};
  ScheduleDialect dialect{};
  std::optional<double> peak;  ///< set but for a range test
  double minimum = 0;
  Length warmup;
  Length decay;
  WeightDecay weight_decay;
  RangeTest range_test;
  Wsd wsd;

  bool operator==(const Schedule&) const = default;
};

}  // namespace trireme::deck
