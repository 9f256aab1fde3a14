// The step time that the planner expects of a run, to be printed next to the measured one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "plan/search/step_time.hpp"

namespace trireme::plan {

/// What a step of a run should take.
struct ExpectedStep {
  StepTime time;
  std::string source;       ///< "the profile of NVIDIA H200 SXM", or "data sheets and formulas"
  bool calibrated = false;  ///< by measured passes; else no comparison is made
};

/// Times `deck`'s layout, whose parallel.data is resolved, on the first nodes of `cluster`. Throws
/// DeckError as time_layout().
ExpectedStep expected_step(const deck::Deck& deck, std::int64_t vocab, const Cluster& cluster);

/// One line: the time and its parts, or that it is not calibrated.
std::string describe(const ExpectedStep& expected);

/// Milliseconds of a measured step; parts are 0 where no timer measured them.
struct MeasuredStep {
  double ms = 0;
  double passes = 0;  ///< all passes, waiting for other stages included
  double reduction = 0;
  double optimizer = 0;
};

/// The measured step against a calibrated expectation; more than 10 % apart, the parts that differ
/// most.
std::string compare(const ExpectedStep& expected, const MeasuredStep& measured);

}  // namespace trireme::plan
