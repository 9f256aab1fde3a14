#include "train/run_state.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"

namespace trireme::train {
namespace {

const deck::Spike kRule{.above = 3.0, .window = 4, .limit = 2};

SpikeHistory calm() {
  SpikeHistory history;
  for (const double loss : {9.0, 3.0, 3.2, 2.8, 3.1}) history.add(loss, loss / 3, 4);
  return history;
}

TEST(Spike, IsFarAboveTheWindow) {
  const SpikeHistory history = calm();
  EXPECT_EQ(history.losses, (std::vector<double>{3.0, 3.2, 2.8, 3.1}));
  // Mean 3.025, standard deviation 0.148.
  EXPECT_FALSE(find_spike(kRule, history, 3.4, 1.0));
  EXPECT_EQ(find_spike(kRule, history, 3.5, 1.0).value_or(""),
            "loss 3.5 is 3.21 standard deviations above the mean 3.025 of 4 iterations");
  EXPECT_FALSE(find_spike(kRule, history, 1.0, 1.0)) << "below the mean is no spike";
  const auto norm = find_spike(kRule, history, 3.0, 1.5);
  ASSERT_TRUE(norm);
  EXPECT_TRUE(norm->starts_with("gradient norm 1.5 is ")) << *norm;
}

TEST(Spike, NeedsAWholeWindowAndEndsAtItsLimit) {
  SpikeHistory history = calm();
  history.losses.erase(history.losses.begin());
  EXPECT_FALSE(find_spike(kRule, history, 100.0, 1.0));
  history = calm();
  history.skipped = 1;
  EXPECT_TRUE(find_spike(kRule, history, 100.0, 1.0));
  history.skipped = 2;
  EXPECT_FALSE(find_spike(kRule, history, 100.0, 1.0));
  EXPECT_FALSE(find_spike({}, calm(), 100.0, 1.0)) << "no rule";
}

TEST(Spike, HistoryComesBackFromItsTextExactly) {
  SpikeHistory history = calm();
  history.add(1.0 / 3, 1e-300, 4);
  history.skipped = 7;
  EXPECT_EQ(SpikeHistory::from(history.text()), history);
  EXPECT_EQ(SpikeHistory::from(SpikeHistory().text()), SpikeHistory());
  for (const char* bad : {"", "1", "0 2 1.0 2.0 3.0", "0 99999999999 1", "x"})
    EXPECT_THROW(SpikeHistory::from(bad), DataError) << bad;
}

}  // namespace
}  // namespace trireme::train
