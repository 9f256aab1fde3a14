#include "kernels/optimizer.hpp"

#include "../kernel_testing.hpp"

namespace trireme::kernels {
namespace {

/// Whether element i of the buffers below is a zero: a pattern without a short period.
bool is_zero(std::int64_t i) { return i % 7 == 3 || i % 1001 < 5; }

/// n elements, some of them zeros of either sign, the others as small as numbers get.
template <typename T>
Owned<T> with_zeros(std::int64_t n) {
  Owned<T> x({n}, 0.0);
  for (std::int64_t i = 0; i < n; ++i) {
    const T smallest = std::numeric_limits<T>::denorm_min();
    x[i] = is_zero(i) ? (i % 2 == 0 ? T{0} : -T{0}) : (i % 3 == 0 ? -smallest : smallest);
  }
  return x;
}

template <typename T>
class ZeroCountTest : public ::testing::Test {};
TYPED_TEST_SUITE(ZeroCountTest, StorageTypes);

TYPED_TEST(ZeroCountTest, AddsTheNumberOfZeros) {
  using T = TypeParam;
  for (const std::int64_t n : {0, 1, 5, 50001}) {
    Owned<T> x = with_zeros<T>(n);
    Owned<double> sum({1}, 2.0);
    double expected = 2.0;
    for (std::int64_t i = 0; i < n; ++i) expected += is_zero(i);
    host::zero_count({x.tensor(), sum.tensor()});
    EXPECT_EQ(sum[0], expected) << n;
  }
}

TYPED_TEST(ZeroCountTest, CountsInTheIndexRangesAlone) {
  using T = TypeParam;
  const std::vector<std::int64_t> bounds = {0, 3, 40, 40, 50, 90};
  Owned<T> x = with_zeros<T>(100);
  Owned<double> sum({1}, 0.0);
  double expected = 0.0;
  for (std::int64_t i = 0; i < 100; ++i) expected += is_zero(i) && (i < 3 || (i >= 50 && i < 90));
  host::zero_count({x.tensor(), sum.tensor(), {bounds.data(), 6}});
  EXPECT_EQ(sum[0], expected);
}

TYPED_TEST(ZeroCountTest, NanIsNotZero) {
  using T = TypeParam;
  Owned<T> x({3}, std::numeric_limits<double>::quiet_NaN());
  x[1] = std::numeric_limits<T>::infinity();
  Owned<double> sum({1}, 0.0);
  host::zero_count({x.tensor(), sum.tensor()});
  EXPECT_EQ(sum[0], 0.0);
}

TYPED_TEST(ZeroCountTest, AChecksumTellsEachFlippedBitAndSwap) {
  using T = TypeParam;
  Owned<T> x = with_zeros<T>(50001);
  const auto checksum = [&] {
    std::uint64_t sum = 5;
    host::checksum({x.tensor(), &sum});
    return sum;
  };
  const std::uint64_t before = checksum();
  EXPECT_EQ(checksum(), before);
  for (const std::int64_t i : {0, 7, 16384, 50000}) {
    auto* bytes = reinterpret_cast<unsigned char*>(&x[i]);
    for (std::size_t bit = 0; bit < 8 * sizeof(T); ++bit) {
      bytes[bit / 8] ^= 1u << bit % 8;
      EXPECT_NE(checksum(), before) << i << " " << bit;
      bytes[bit / 8] ^= 1u << bit % 8;
    }
  }
  std::swap(x[5], x[10]);
  EXPECT_NE(checksum(), before);
}

TEST(ZeroCount, NeedsASumOfDoubles) {
  Owned<float> x({3}, 0.0), sum({1}, 0.0);
  EXPECT_THROW(host::zero_count({x.tensor(), sum.tensor()}), InternalError);
}

}  // namespace
}  // namespace trireme::kernels
