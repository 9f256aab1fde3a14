#include "core/system/process.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "core/files.hpp"

namespace trireme {
namespace {

TEST(BuildId, IsInTheProgramsFile) {
  const std::string id = build_id();
  ASSERT_GE(id.size(), 16u);
  std::string bytes;
  for (std::size_t i = 0; i < id.size(); i += 2)
    bytes += static_cast<char>(std::stoi(id.substr(i, 2), nullptr, 16));
  EXPECT_NE(read_file(program_path()).find(bytes), std::string::npos);
}

TEST(ProgramPath, NamesThisTest) {
  EXPECT_EQ(std::filesystem::path(program_path()).filename(), "test_core");
}

}  // namespace
}  // namespace trireme
