#include "core/plural.hpp"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(Plural, HasOneSingular) {
  EXPECT_EQ(counted(0, "rank"), "0 ranks");
  EXPECT_EQ(counted(1, "rank"), "1 rank");
  EXPECT_EQ(counted(-1, "rank"), "-1 ranks");
  EXPECT_EQ(counted(std::size_t{2}, "micro-batch"), "2 micro-batches");
  EXPECT_EQ(counted(1, "micro-batch"), "1 micro-batch");
}

}  // namespace
}  // namespace trireme
