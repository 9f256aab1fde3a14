// describe() and verify() of file.hpp for programs that show their progress.
#pragma once

#include <cstdio>
#include <filesystem>
#include <string>

#include "checkpoint/file.hpp"

namespace trireme::checkpoint {

/// As in file.hpp. `progress` gets a progress meter, null nothing.
std::string describe(const std::filesystem::path& path, bool json, std::FILE* progress);
Verified verify(const std::filesystem::path& path, std::FILE* progress);

}  // namespace trireme::checkpoint
