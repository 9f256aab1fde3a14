// Where a diverged model holds numbers that are not finite, or the largest ones.
#pragma once

#include <string>

#include "comm/mpi/mpi_communicator.hpp"
#include "device/backend.hpp"
#include "model/parameters/store.hpp"
#include "optim/optimizer.hpp"

namespace trireme::train {

/// The first parameter of the table that has a weight which is NaN or infinite on any rank; where
/// there is none, the first with such a gradient. In words: "the weight layers/0/mlp/up/weight[3,
/// 17] on rank 1 (node0) is nan; 1 of 26 parameters has such weights". "" where all numbers are
/// finite. Weights are looked at in both precisions; gradients are those that reduce_gradients()
/// left, of which this rank owns a shard. Copies both to the host in pieces. Collective over
/// `world`; the same text on every rank.
std::string find_non_finite(comm::MpiCommunicator& world, device::Backend& backend,
                            const model::ParameterStore& parameters,
                            const optim::Optimizer& optimizer);

/// As find_non_finite(), of the weights alone that passes read, which must be whole.
std::string find_non_finite(comm::MpiCommunicator& world, device::Backend& backend,
                            const model::ParameterStore& parameters);

/// The parameter with the largest magnitude of a weight: "-3e+18 in layers/0/mlp/up/weight on rank
/// 0 (host)". Collective over `world`; the same text on every rank.
std::string find_largest_weight(comm::MpiCommunicator& world, device::Backend& backend,
                                const model::ParameterStore& parameters,
                                const optim::Optimizer& optimizer);

}  // namespace trireme::train
