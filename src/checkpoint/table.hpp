// The check that all ranks describe the same tensors and own every element once.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/host_view.hpp"

namespace trireme::checkpoint {

/// Checks that every rank passes the same names, shapes and types, and that every piece is well
/// formed. Throws InternalError on every rank. Collective.
void check_tensors(comm::MpiCommunicator& ranks, const std::vector<LocalTensor>& tensors);

/// The checksums of the logical tensors, summed over the pieces of all owners, which `view` reads.
/// Throws InternalError
/// naming the tensor, on every rank, unless the owners' pieces cover each tensor once. Collective.
std::vector<std::uint64_t> total_checksums(comm::MpiCommunicator& ranks,
                                           const std::vector<LocalTensor>& tensors, HostView& view);

}  // namespace trireme::checkpoint
