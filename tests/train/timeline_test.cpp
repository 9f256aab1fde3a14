#include <gtest/gtest.h>

#include "comm/mpi/mpi_communicator.hpp"
#include "device/backend.hpp"
#include "train/training_log.hpp"

namespace trireme::train {
namespace {

// A traced run captures the CUDA graphs of one that is not.
TEST(Timeline, TracedGroupsCaptureWithoutBeingRecorded) {
  const auto backend = device::make_host_backend(1);
  const deck::Deck deck;
  comm::Groups groups;
  groups.tensor = std::make_unique<comm::SerialCommunicator>();
  Timeline timeline(deck, groups, *backend);
  int captures = 0, launches = 0;
  const auto captured = groups.tensor->capture([&] {
    ++captures;
    EXPECT_FALSE(timeline.records());
  });
  EXPECT_EQ(captures, 1);
  ASSERT_TRUE(captured);
  captured->run([&] { ++launches; });
  EXPECT_EQ(launches, 1);
}

}  // namespace
}  // namespace trireme::train
