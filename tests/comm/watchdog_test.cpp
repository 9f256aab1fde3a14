#include "comm/watchdog.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace trireme::comm {
namespace {

TEST(ToDuration, KeepsWhatClocksCanCount) {
  EXPECT_EQ(to_duration(1.5), std::chrono::milliseconds(1500));
  EXPECT_EQ(to_duration(0.0), std::chrono::seconds(0));
}

TEST(WatchedCall, MayTakeAsLongAsAnybodySays) {
  Watchdog watchdog;
  for (const double seconds : {1e9, 1e12, std::numeric_limits<double>::infinity()}) {
    const auto timeout = to_duration(seconds);
    EXPECT_GE(timeout, std::chrono::hours(24 * 365)) << seconds;
    EXPECT_GT(timeout + timeout, timeout) << "no room for longer patience";
    WatchedCall call(watchdog, "waiting", timeout);
    EXPECT_EQ(call.complaint(Watched::Clock::now() + std::chrono::hours(24)), "") << seconds;
  }
}

}  // namespace
}  // namespace trireme::comm
