#include "core/system/process.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "../../scratch_folder.hpp"
#include "core/files.hpp"

namespace trireme {
namespace {

TEST(ProcessMemory, SeesWhatIsTouched) {
  const ProcessMemory before = process_memory();
  ASSERT_GT(before.resident, 1 << 20);
  const std::vector<char> block(64 << 20, 1);
  const ProcessMemory after = process_memory();
  EXPECT_GT(after.resident, before.resident + (60 << 20));
  EXPECT_GE(after.peak, after.resident);
  EXPECT_GE(after.address_space, before.address_space + (60 << 20));
  EXPECT_GE(after.address_space, after.resident);
  EXPECT_GE(after.peak_address_space, after.address_space);
  EXPECT_EQ(block.back(), 1);
}

// Files as the kernel writes them, of a process in a group within a group that has a limit.
TEST(AvailableMemory, IsWhatSystemAndGroupsLeave) {
  const ScratchFolder scratch;
  const std::filesystem::path root = scratch.path();
  const auto write = [&](const std::string& name, const std::string& text) {
    std::filesystem::create_directories((root / name).parent_path());
    write_file_atomically(root / name, text);
  };
  EXPECT_EQ(available_memory(root.string()), 0);
  write("proc/meminfo", "MemTotal: 16000 kB\nMemFree: 100 kB\nMemAvailable:   8000 kB\n");
  EXPECT_EQ(available_memory(root.string()), 8000 * 1024);
  write("proc/self/cgroup", "0::/job/step\n");
  write("sys/fs/cgroup/job/step/memory.max", "max\n");
  write("sys/fs/cgroup/job/memory.max", "5000000\n");
  write("sys/fs/cgroup/job/memory.current", "2000000\n");
  EXPECT_EQ(available_memory(root.string()), 3'000'000);
  write("sys/fs/cgroup/job/memory.stat", "anon 7\ninactive_file 500000\n");
  EXPECT_EQ(available_memory(root.string()), 3'500'000);
  EXPECT_GT(available_memory(), 0) << "of this host";
}

}  // namespace
}  // namespace trireme
