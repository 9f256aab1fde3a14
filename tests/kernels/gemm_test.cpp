#include "kernels/linear.hpp"

#include "kernel_testing.hpp"

namespace trireme::kernels {
namespace {

template <typename T>
class GemmTest : public ::testing::Test {};
TYPED_TEST_SUITE(GemmTest, StorageTypes);

struct Case {
  std::int64_t m, n, k;
};

Shape stored(bool transposed, std::int64_t rows, std::int64_t columns) {
  return transposed ? Shape{columns, rows} : Shape{rows, columns};
}

template <typename T>
std::vector<double> reference(const Owned<T>& a, const Owned<T>& b, const Owned<T>& c,
                              const Case& size, bool ta, bool tb, double beta) {
  std::vector<double> result(size.m * size.n);
  for (std::int64_t i = 0; i < size.m; ++i)
    for (std::int64_t j = 0; j < size.n; ++j) {
      double sum = beta == 0.0 ? 0.0 : beta * c[i * size.n + j];
      for (std::int64_t l = 0; l < size.k; ++l)
        sum += a[ta ? l * size.m + i : i * size.k + l] * b[tb ? j * size.k + l : l * size.n + j];
      result[i * size.n + j] = sum;
    }
  return result;
}

TYPED_TEST(GemmTest, MatchesTheDefinition) {
  using T = TypeParam;
  for (const Case size : {Case{1, 1, 1}, Case{7, 5, 3}, Case{1, 600, 33}, Case{300, 2, 17},
                          Case{600, 40, 9}, Case{33, 545, 80}})
    for (const bool ta : {false, true})
      for (const bool tb : {false, true})
        for (const double beta : {0.0, 1.0}) {
          Owned<T> a = Owned<T>::random(stored(ta, size.m, size.k), 1);
          Owned<T> b = Owned<T>::random(stored(tb, size.k, size.n), 2);
          Owned<T> c =
              beta == 0.0 ? Owned<T>({size.m, size.n}) : Owned<T>::random({size.m, size.n}, 3);
          const std::vector<double> expected = reference(a, b, c, size, ta, tb, beta);
          host::gemm({a.tensor(), b.tensor(), c.tensor(), ta, tb, beta});
          expect_close("c", c, expected, tolerance<T>(2e-6));
        }
}

TYPED_TEST(GemmTest, ThreadsChangeNothing) {
  using T = TypeParam;
  for (const Case size :
       {Case{1030, 70, 33}, Case{70, 1030, 65}, Case{515, 513, 300}, Case{1, 1030, 40}})
    for (const bool ta : {false, true})
      expect_threads_change_nothing<T>("c", [&] {
        Owned<T> a = Owned<T>::random(stored(ta, size.m, size.k), 1);
        Owned<T> b = Owned<T>::random({size.n, size.k}, 2);
        Owned<T> c({size.m, size.n});
        host::gemm({a.tensor(), b.tensor(), c.tensor(), ta, true});
        return c;
      });
}

TYPED_TEST(GemmTest, FoldsLeadingAxesIntoRows) {
  using T = TypeParam;
  Owned<T> a = Owned<T>::random({3, 2, 4}, 1), b = Owned<T>::random({5, 4}, 2);
  Owned<T> folded({3, 2, 5}), plain({6, 5});
  host::gemm({a.tensor(), b.tensor(), folded.tensor(), false, true});
  host::gemm({a.tensor().view({6, 4}), b.tensor(), plain.tensor(), false, true});
  expect_same_bits("c", folded, plain);
}

TEST(Gemm, RefusesShapesThatDoNotMeet) {
  Owned<float> a({2, 3}, 1.0), b({4, 5}, 1.0), c({2, 5}, 0.0);
  try {
    host::gemm({a.tensor(), b.tensor(), c.tensor()});
    FAIL() << "accepted";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("gemm: b is [4, 5], expected 3 rows of 5"),
              std::string::npos)
        << error.what();
  }
  Owned<double> wide({3, 5}, 1.0);
  EXPECT_THROW(host::gemm({a.tensor(), wide.tensor(), c.tensor()}), InternalError);
}

}  // namespace
}  // namespace trireme::kernels
