// A checkpoint file without its elements.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"

namespace trireme::checkpoint {

/// Makes the file at `path`, or replaces it, with its attributes, the deck, and every tensor with
/// its checksum, its elements placed but not written. Called by one rank; no MPI. Throws
/// hdf5::Failure.
void write_skeleton(const std::filesystem::path& path, const Attributes& attributes,
                    const std::string& deck, const std::vector<LocalTensor>& tensors,
                    const std::vector<std::uint64_t>& checksums);

}  // namespace trireme::checkpoint
