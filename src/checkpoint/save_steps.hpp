// The steps that save() and BackgroundSave share.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/elements.hpp"

namespace trireme::checkpoint {

/// Checks that every rank passes the same names, shapes and types, and that every piece is well
/// formed. Throws InternalError on every rank. Collective.
void check_tensors(comm::MpiCommunicator& ranks, const std::vector<LocalTensor>& tensors);

/// The checksums of the pieces that this rank owns, by tensor. `progressed` is called after each of
/// HostView's pieces. No MPI.
std::vector<std::uint64_t> own_checksums(const std::vector<LocalTensor>& tensors, HostView& view,
                                         const std::function<void()>& progressed);

/// The checksums of the logical tensors: the sums over all ranks of own_checksums(). Throws
/// InternalError naming the tensor, on every rank, unless the owners' pieces cover each tensor
/// once. Collective.
std::vector<std::uint64_t> total_checksums(comm::MpiCommunicator& ranks,
                                           const std::vector<LocalTensor>& tensors,
                                           std::vector<std::uint64_t> own);

/// The absolute name of the file that becomes `path` when it is complete.
std::filesystem::path unfinished_name(const std::filesystem::path& path);

/// Syncs the complete file `unfinished`, renames it to `path` and names it in `latest`. One rank;
/// no MPI. Throws IoError.
void rename_and_publish(const std::filesystem::path& unfinished, const std::filesystem::path& path);

}  // namespace trireme::checkpoint
