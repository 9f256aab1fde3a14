// The partition of layers over pipeline stages with which the simulator's time is least.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "plan/search/step_time.hpp"

namespace trireme::plan {

/// A partition and its simulated time.
struct Partition {
  std::vector<std::int64_t> layers;  ///< of each stage; empty: none has room for all of them
  double seconds = 0;
  bool exact = false;  ///< whether no other partition is faster
  int simulations = 0;
};

/// The fastest partition under 1F1B, of those that give stage p at most `most[p]` layers. Dynamic
/// programming finds the partition whose lower bound is least: of the paths through the schedule's
/// graph that stay on one stage, and of those that also take the first and the last micro-batch
/// through all later stages. Branch and bound from there simulates partitions whose bound is below
/// the best time, at most `max_simulations`. O(stages * layers^2) and the simulations.
/// Other schedules take the partition of least bound. Nothing when no partition of a step comes
/// below `limit` seconds.
Partition best_partition(const LayoutTimes& times, std::int64_t layers,
                         const std::vector<std::int64_t>& most, int max_simulations,
                         double limit = std::numeric_limits<double>::infinity());

}  // namespace trireme::plan
