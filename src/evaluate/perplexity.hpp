// The loss of a model over a whole split.
#pragma once

#include <cstdint>

#include "pipeline/stage_runner.hpp"

namespace trireme::evaluate {

/// The loss of every sample of `dataset`, each once, in micro-batches spread over the data ranks:
/// on any layout the same samples. Collective over all ranks. Throws as data::fill_micro_batch, on
/// the ranks that read tokens.
pipeline::LossSum whole_split(pipeline::StageRunner& runner, const data::GptDataset& dataset,
                              std::int64_t micro_batch, const comm::Groups& groups);

}  // namespace trireme::evaluate
