#include "comm/watchdog.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace trireme::comm {
namespace {

TEST(ToDuration, KeepsWhatClocksCanCount) {
  EXPECT_EQ(to_duration(1.5), std::chrono::milliseconds(1500));
  EXPECT_EQ(to_duration(0.0), std::chrono::seconds(0));
}

TEST(WatchedCall, AcceptsTheLongestTimeouts) {
  Watchdog watchdog;
  for (const double seconds : {1e9, 1e12, std::numeric_limits<double>::infinity()}) {
    const auto timeout = to_duration(seconds);
    EXPECT_GE(timeout, std::chrono::hours(24 * 365)) << seconds;
    EXPECT_GT(timeout + timeout, timeout) << "overflow";
    WatchedCall call(watchdog, "waiting", timeout);
    EXPECT_EQ(call.problem(Watched::Clock::now() + std::chrono::hours(24)), "") << seconds;
  }
}

TEST(WatchedCall, IsEndedByTheLearnedLimitWhereThatIsLess) {
  Watchdog watchdog;
  WatchedCall call(watchdog, "waiting", std::chrono::seconds(120));
  const auto after = [&](int seconds) {
    return call.problem(Watched::Clock::now() + std::chrono::seconds(seconds));
  };
  EXPECT_EQ(after(20), "");
  watchdog.set_limit(std::chrono::seconds(10));
  EXPECT_EQ(after(9), "");
  EXPECT_EQ(after(11),
            "waiting took longer than 10.0 s (the limit learned from earlier iterations; "
            "comm.timeout is 120 s)");
  watchdog.set_limit(std::chrono::seconds(300));
  EXPECT_EQ(after(121), "waiting took longer than 120 s (comm.timeout)");
  watchdog.set_limit(std::nullopt);
  EXPECT_EQ(after(20), "");
  EXPECT_EQ(watchdog.phase(), "");
  watchdog.set_phase("the update", 12);
  EXPECT_EQ(watchdog.phase(), "the update of iteration 12");
}

// ---------------------------------------------------------------------------- operations

struct FakeEvent {
  bool is_done = false;
  bool done() const { return is_done; }
};

class OperationQueueTest : public testing::Test {
 protected:
  using Queue = OperationQueue<FakeEvent>;
  using Seconds = std::chrono::seconds;

  static Queue::Clock::time_point at(int seconds) {
    return Queue::Clock::time_point(Seconds(seconds));
  }
  /// Queues an operation at `seconds`.
  std::shared_ptr<FakeEvent> add(const char* name, int seconds) {
    auto mark = std::make_shared<FakeEvent>();
    queue_.begin(name, 4, at(seconds));
    queue_.queued(mark);
    return mark;
  }
  /// The number of the operation that is late at `seconds`, 0 when none is.
  std::uint64_t late(int seconds) {
    queue_.retire(at(seconds));
    const auto* operation = queue_.overdue(at(seconds), Seconds(10));
    return operation ? operation->number : 0;
  }

  Queue queue_;
};

TEST_F(OperationQueueTest, TheOldestOperationIsLate) {
  add("send", 0);
  add("receive", 5);
  EXPECT_EQ(late(9), 0u);
  EXPECT_EQ(late(10), 1u);
  EXPECT_STREQ(queue_.overdue(at(10), Seconds(10))->name, "send");
  EXPECT_EQ(queue_.overdue(at(10), Seconds(10))->bytes, 4u);
}

TEST_F(OperationQueueTest, WaitingAfterAnotherIsNotBeingLate) {
  const auto first = add("first", 0);
  add("second", 1);
  first->is_done = true;
  EXPECT_EQ(late(9), 0u);   // the second has come to the head now
  EXPECT_EQ(late(18), 0u);  // 17 s after it was queued
  EXPECT_EQ(late(19), 2u);
}

TEST_F(OperationQueueTest, AHostThatQueuesNothingIsNotLate) {
  add("first", 0)->is_done = true;
  EXPECT_EQ(late(1), 0u);
  EXPECT_EQ(late(1000), 0u);
  add("second", 1000);
  EXPECT_EQ(late(1009), 0u);
  EXPECT_EQ(late(1010), 2u);
}

TEST_F(OperationQueueTest, ACallThatDoesNotReturnIsLate) {
  queue_.begin("all-reduce", 4, at(0));
  EXPECT_EQ(late(10), 1u);
  EXPECT_EQ(queue_.overdue(at(10), Seconds(10))->end, nullptr);
}

TEST_F(OperationQueueTest, FailedCallsAreForgotten) {
  queue_.begin("all-reduce", 4, at(0));
  queue_.failed();
  EXPECT_EQ(late(100), 0u);
}

TEST_F(OperationQueueTest, LaterOperationsAreDoneInTheirTurn) {
  const auto first = add("first", 0);
  const auto second = add("second", 0);
  second->is_done = true;
  EXPECT_EQ(late(10), 1u);
  first->is_done = true;
  EXPECT_EQ(late(100), 0u);
  EXPECT_EQ(first.use_count(), 1);  // its event can be used again
  EXPECT_EQ(second.use_count(), 1);
}

}  // namespace
}  // namespace trireme::comm
