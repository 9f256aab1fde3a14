#include "device/timers.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <thread>

#include "core/clock.hpp"

namespace trireme::device {
namespace {

void work(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

class TimersTest : public testing::Test {
 protected:
  const std::unique_ptr<Backend> backend_ = make_host_backend(1);
  Timers timers_{*backend_};
};

TEST_F(TimersTest, AddUpUntilTaken) {
  const Stopwatch watch;
  for (int i = 0; i < 3; ++i) timed(&timers_, Phase::forward, [] { work(10); });
  const auto total = timers_.take(Phase::forward);
  ASSERT_TRUE(total);
  EXPECT_GE(*total, 30.0);
  EXPECT_LE(*total, 1e3 * watch.seconds());
  EXPECT_FALSE(timers_.take(Phase::forward)) << "it was taken";
  EXPECT_FALSE(timers_.take(Phase::backward)) << "it never ran";
}

TEST_F(TimersTest, PhasesLieWithinOthers) {
  timed(&timers_, Phase::forward_backward, [&] {
    timed(&timers_, Phase::forward, [&] { timed(&timers_, Phase::batch, [] { work(10); }); });
    timed(&timers_, Phase::backward, [] { work(20); });
  });
  const double all = *timers_.take(Phase::forward_backward);
  const double forward = *timers_.take(Phase::forward);
  const double batch = *timers_.take(Phase::batch);
  const double backward = *timers_.take(Phase::backward);
  EXPECT_GE(batch, 10.0);
  EXPECT_GE(forward, batch);
  EXPECT_GE(backward, 20.0);
  EXPECT_GE(all, forward + backward);
}

TEST_F(TimersTest, SettlingLosesNothing) {
  constexpr int kIterations = 20;
  for (int i = 0; i < kIterations; ++i) {
    timed(&timers_, Phase::update, [] { work(1); });
    timed(&timers_, Phase::save, [] { work(1); });
    timers_.settle();
    if (i % 2 == 0) timers_.settle();
  }
  EXPECT_GE(*timers_.take(Phase::update), kIterations);
  const Stopwatch watch;
  timed(&timers_, Phase::update, [] {});
  const double empty_ms = 1e3 * watch.seconds();
  EXPECT_LE(*timers_.take(Phase::update), empty_ms) << "what was taken came again";
  timers_.settle();
  EXPECT_GE(*timers_.take(Phase::save), kIterations);
}

TEST_F(TimersTest, ReturnWhatTheWorkReturns) {
  EXPECT_EQ(timed(&timers_, Phase::optimizer, [] { return 7; }), 7);
  EXPECT_EQ(timed(nullptr, Phase::optimizer, [] { return 8; }), 8);
  EXPECT_TRUE(timers_.take(Phase::optimizer));
}

TEST_F(TimersTest, ForgetWorkThatFailed) {
  EXPECT_THROW(timed(&timers_, Phase::update, [] { throw std::runtime_error("no"); }),
               std::runtime_error);
  EXPECT_FALSE(timers_.take(Phase::update));
  timed(&timers_, Phase::update, [] {});
  EXPECT_TRUE(timers_.take(Phase::update));
}

TEST(Phases, HaveMegatronsNames) {
  EXPECT_EQ(name_of(Phase::forward_backward), "forward-backward");
  EXPECT_EQ(name_of(Phase::forward), "forward-compute");
  EXPECT_EQ(name_of(Phase::batch), "batch-generator");
  EXPECT_EQ(name_of(Phase::grads_sync), "all-grads-sync");
  EXPECT_EQ(name_of(Phase::gradient_norm), "optimizer-clip-main-grad");
  EXPECT_EQ(name_of(Phase::update), "optimizer-inner-step");
  EXPECT_EQ(name_of(Phase::optimizer), "optimizer");
  EXPECT_EQ(name_of(Phase::save), "save-checkpoint");
}

}  // namespace
}  // namespace trireme::device
