// The tensors of a model and its optimizer, as a checkpoint stores them.
#pragma once

#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "model/parameters/store.hpp"
#include "optim/optimizer.hpp"

namespace trireme::checkpoint {

/// Every logical tensor of a checkpoint with this rank's part of it: weights under model/, what the
/// optimizer keeps under optimizer/m/ and optimizer/v/. Views of the live buffers.
std::vector<LocalTensor> checkpoint_tensors(const model::ParameterStore& parameters,
                                            const optim::Optimizer& optimizer);

/// The weights alone, for programs that do not train: this rank's whole local parameters. The first
/// data rank owns.
std::vector<LocalTensor> weight_tensors(const model::ParameterStore& parameters,
                                        bool first_data_rank);

}  // namespace trireme::checkpoint
