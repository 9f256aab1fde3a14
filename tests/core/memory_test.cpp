#include "core/memory.hpp"

#include <gtest/gtest.h>

#include <vector>

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

}  // namespace
}  // namespace trireme
