#include "model/stage/stage_memory.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace trireme::model {
namespace {

TEST(Documents, BeginAfterTheEndOfThePreviousOne) {
  constexpr std::int32_t kEod = 9;
  // Two samples, side by side: 9 1 2 9 9 3 and 1 2 3 4 5 9.
  const std::vector<std::int32_t> ids = {9, 1, 1, 2, 2, 3, 9, 4, 9, 5, 3, 9};
  std::vector<std::int32_t> starts(12), positions(12);
  find_document_starts(ids, 2, kEod, starts);
  EXPECT_EQ(starts, (std::vector<std::int32_t>{0, 1, 1, 1, 4, 5, 0, 0, 0, 0, 0, 0}));
  positions_in_documents(starts, 2, positions);
  EXPECT_EQ(positions, (std::vector<std::int32_t>{0, 0, 0, 1, 1, 2, 2, 3, 0, 4, 0, 5}));
}

}  // namespace
}  // namespace trireme::model
