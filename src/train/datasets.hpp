// The datasets that a run trains and evaluates on.
#pragma once

#include <memory>
#include <optional>

#include "comm/communicator.hpp"
#include "data/dataset.hpp"
#include "plan/setup.hpp"

namespace trireme::train {

/// Opens `split` of the deck's data for `samples` samples (absent: one epoch) of the kind that the
/// model's family trains on. Collective over `world`, whose rank 0 builds the sample index; a rank
/// that throws does not reach the barrier, so the caller must end the others. Throws as
/// data::open_gpt_blend().
std::unique_ptr<const data::Dataset> open_dataset(const deck::Deck& deck,
                                                  const plan::Vocabulary& vocabulary,
                                                  data::Split split,
                                                  std::optional<std::int64_t> samples,
                                                  comm::Communicator& world);

}  // namespace trireme::train
