// train.skip: training data that a run passes over.
//
// Before iteration A of a range A-B the data of iterations A to B is left out: they take the data
// that follows on it, and the run is as long as without the range. Source: BigScience's
// Megatron-DeepSpeed, --skip-train-iteration-range.
#pragma once

#include <cstdint>
#include <optional>

#include "deck/deck.hpp"
#include "train/run_state.hpp"

namespace trireme::train {

/// The iterations whose data is to be passed over before the next iteration, if any. What has been
/// passed over before, or trained on because the range is new to the run, is not among them.
std::optional<deck::IterationRange> data_to_skip(const deck::Deck& deck, const RunState& state);

/// Samples that a run which has come to `state` passes over until `last_iteration`.
std::int64_t samples_to_skip(const deck::Deck& deck, RunState state, std::int64_t last_iteration);

/// Moves `state` past the data of `range`, which is what data_to_skip() gave. Returns the samples.
std::int64_t skip_data(const deck::Deck& deck, const deck::IterationRange& range, RunState& state);

}  // namespace trireme::train
