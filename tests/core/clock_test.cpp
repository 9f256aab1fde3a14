#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>

#include "core/clock.hpp"
#include "core/error.hpp"

namespace trireme {
namespace {

// However long they are looked at: each comparison has the same two beginnings.
TEST(Clock, StopwatchesKnowWhichBeganLater) {
  const Stopwatch first;
  Stopwatch second;
  while (second.seconds_after(first) <= 0.0) second = {};
  const double apart = second.seconds_after(first);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(first.seconds_after(second), -apart);
  EXPECT_LE(apart, first.seconds());
}

TEST(Clock, ParsesSlurmDurations) {
  EXPECT_EQ(parse_duration("01:02:03"), 3723);
  EXPECT_EQ(parse_duration("90:00"), 5400);
  EXPECT_EQ(parse_duration("1-00:00:10"), 86410);
  for (const char* bad : {"", "90", "1h", "-1:00", "00:00:00:00", "1:2:3x"})
    EXPECT_THROW(parse_duration(bad), UsageError) << bad;
}

TEST(Clock, PrintsLocalDatesAndTimes) {
  ::setenv("TZ", "CET-1", 1);
  ::tzset();
  EXPECT_EQ(local_date_time(1686758892.99), "2023-06-14 17:08:12");
  ::setenv("TZ", "UTC", 1);
  ::tzset();
  EXPECT_EQ(local_date_time(0), "1970-01-01 00:00:00");
}

TEST(Clock, PrintsDurations) {
  EXPECT_EQ(human_duration(12.4), "12s");
  EXPECT_EQ(human_duration(200), "3m20s");
  EXPECT_EQ(human_duration(4020), "1h07m");
  EXPECT_EQ(human_duration(90000), "1d01h");
  EXPECT_EQ(human_duration(-5), "0s");
}

TEST(Median, OfAnOddNumberIsTheMiddleOne) {
  EXPECT_EQ(median<double>({3}), 3);
  EXPECT_EQ(median<double>({9, 1, 5}), 5);
  EXPECT_EQ(median<int>({2, 2, 7, 1, 2}), 2);
}

TEST(Median, OfAnEvenNumberIsTheLowerOne) {
  EXPECT_EQ(median<double>({4, 1}), 1);
  EXPECT_EQ(median<float>({8, 2, 6, 4}), 4);
}

TEST(Median, OfNothingIsRefused) { EXPECT_THROW(median<double>({}), InternalError); }

}  // namespace

}  // namespace trireme
