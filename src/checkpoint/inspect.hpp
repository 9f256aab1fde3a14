// What trireme-inspect says about a checkpoint.
#pragma once

#include <filesystem>
#include <string>

namespace trireme::checkpoint {

/// The attributes of the checkpoint at `path`, its tensors (shape, type, checksum, sum of squares)
/// and its deck, for people or as one JSON object. Reads every element and verifies every checksum,
/// one tensor in memory at a time. Needs no MPI. Throws as Reader does.
std::string describe(const std::filesystem::path& path, bool json);

}  // namespace trireme::checkpoint
