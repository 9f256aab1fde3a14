#include "data/numpy_random.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace trireme::data {
namespace {

// RandomState(1234): shuffle(arange(10)), three randint(0, 2**40), five randint(0, 7), two
// random().
TEST(NumpyRandom, DrawsAsNumpyDoes) {
  NumpyRandom random(1234);
  std::vector<int> values(10);
  std::iota(values.begin(), values.end(), 0);
  random.shuffle(std::span(values));
  EXPECT_EQ(values, (std::vector<int>{7, 2, 9, 1, 0, 8, 4, 5, 6, 3}));
  const std::uint64_t max = (std::uint64_t{1} << 40) - 1;
  EXPECT_EQ(random.interval(max), 1001914784922u);
  EXPECT_EQ(random.interval(max), 132293033643u);
  EXPECT_EQ(random.interval(max), 682720009964u);
  for (const std::uint64_t expected : {4, 2, 6, 2, 0}) EXPECT_EQ(random.interval(6), expected);
  EXPECT_EQ(random.uniform(), 0.5009951255234587);
  EXPECT_EQ(random.uniform(), 0.6834629351721363);
}

TEST(NumpyRandom, AnEmptyIntervalDrawsNothing) {
  NumpyRandom random(5), other(5);
  EXPECT_EQ(random.interval(0), 0u);
  std::vector<int> one = {3}, none;
  random.shuffle(std::span(one));
  random.shuffle(std::span(none));
  EXPECT_EQ(random.interval(1000), other.interval(1000));
}

}  // namespace
}  // namespace trireme::data
