// Readers of files and requests that others make, as functions of bytes: for random and damaged
// inputs.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::fuzz {

/// A reader. `read` must return, or throw an Error that bad input may have: not an internal one,
/// and no other exception. `folder` is empty before the first call.
struct Target {
  std::string name;
  std::vector<std::string> seeds;   ///< inputs that are right
  std::vector<std::string> pieces;  ///< what the format gives a meaning to
  std::function<void(std::string_view bytes, const std::filesystem::path& folder)> read;
};

/// All of them. Makes seeds in `folder`.
std::vector<Target> all_targets(const std::filesystem::path& folder);

}  // namespace trireme::fuzz
