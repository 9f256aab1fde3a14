// Writing the elements of tensors: all ranks at once, each its own parts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/host_view.hpp"

namespace trireme::checkpoint {

/// Writes the pieces that this rank owns, which `view` reads, to the file at `path`, where the
/// elements of `tensors` begin at `offsets` (write_metadata()), and syncs them.
///
/// Ranks write independently of each other, and agree on success after at most a GiB of each:
/// an error of one rank ends the save on all. MPI-IO and collective HDF5 are not used: a rank whose
/// write fails in their collective calls leaves the others waiting, without a reason. Collective;
/// throws, on every rank, IoError with the file, the rank and the system's reason.
void write_elements(const std::filesystem::path& path, comm::MpiCommunicator& ranks,
                    const std::vector<LocalTensor>& tensors,
                    const std::vector<std::int64_t>& offsets, HostView& view);

/// Does on every rank what write_elements() does, with one block of zeros. Collective; throws as it
/// does.
void try_to_write(const std::filesystem::path& path, comm::MpiCommunicator& ranks,
                  std::int64_t offset);

}  // namespace trireme::checkpoint
