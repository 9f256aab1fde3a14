#include "device/backend.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::device {
namespace {

/// The lines of the sources below `folder` that include a header whose path starts with `prefix`.
std::vector<std::string> includes_of(const std::filesystem::path& folder, std::string_view prefix) {
  const std::string start = "#include \"" + std::string(prefix);
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    constexpr std::array<std::string_view, 4> kSources = {".hpp", ".cpp", ".cu", ".cuh"};
    const std::string extension = entry.path().extension();
    if (std::find(kSources.begin(), kSources.end(), extension) == kSources.end()) continue;
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);)
      if (line.starts_with(start)) found.push_back(entry.path().string() + ": " + line);
  }
  return found;
}

// What runs on a GPU is reached through the backend and the communicator: a program that plans or
// trains does not depend on how they do it.
TEST(Backend, OnlyItsOwnModulesIncludeTheKernelsOfGpus) {
  const std::filesystem::path source = std::filesystem::path(TRIREME_SOURCE_DIR) / "src";
  ASSERT_FALSE(includes_of(source / "device", "kernels/cuda/").empty());
  for (const auto& module : std::filesystem::directory_iterator(source)) {
    if (!module.is_directory()) continue;
    const std::string name = module.path().filename();
    if (name != "kernels" && name != "device") {
      EXPECT_EQ(includes_of(module.path(), "kernels/cuda/"), std::vector<std::string>());
    }
    if (name != "comm") {
      EXPECT_EQ(includes_of(module.path(), "comm/peer/"), std::vector<std::string>());
    }
  }
}

}  // namespace
}  // namespace trireme::device
