// Disk space for checkpoints, taken before anything is written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"

namespace trireme::checkpoint {

/// Upper bound of the bytes of a checkpoint of `tensors`.
std::int64_t upper_size(const std::string& deck, const std::vector<LocalTensor>& tensors);

/// Creates the folder of `unfinished`, removes what killed runs left in it, and takes the disk
/// blocks for `count` files of `bytes`: `unfinished` and unfinished.2, unfinished.3, ... Throws
/// IoError.
void make_room(const std::filesystem::path& unfinished, std::int64_t bytes, int count = 1);

/// Takes disk blocks for the `bytes` of the file, so that a full disk or a quota is found as one
/// clear error before anything is written, and not by a write among many. File systems that cannot
/// do it find it then. Throws IoError.
void reserve_space(const std::filesystem::path& path, std::int64_t bytes);

/// Removes `unfinished` and the other files of make_room(). Throws nothing.
void remove_room(const std::filesystem::path& unfinished, int count = 1);

}  // namespace trireme::checkpoint
