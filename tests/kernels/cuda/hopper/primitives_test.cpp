#include "primitives.hpp"

#include "../device_testing.hpp"

namespace trireme::kernels::cuda {
namespace {

/// Small integers, whose GEMMs and sums are exact in any type.
std::vector<double> small_integers(std::int64_t count, std::uint64_t seed) {
  std::vector<double> values(count);
  for (std::int64_t i = 0; i < count; ++i)
    values[i] = std::floor(9.0 * philox_uniform(seed, 0, i)) - 4.0;
  return values;
}

std::vector<double> transposed(const std::vector<double>& matrix, int rows, int columns) {
  std::vector<double> result(matrix.size());
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j) result[j * rows + i] = matrix[i * columns + j];
  return result;
}

class HopperPrimitives : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (!is_hopper()) GTEST_SKIP() << "GPU 0 is not of compute capability 9.0";
  }
};

TEST_P(HopperPrimitives, GemmsOfEveryShapeAndStorageAreExact) {
  const DType dtype = GetParam();
  constexpr int kM = 64, kK = 64;
  for (const int n : {64, 80, 96, 112, 128, 192}) {
    const std::vector<double> a = small_integers(kM * kK, 1), b = small_integers(n * kK, 2);
    std::vector<double> expected(kM * n);
    for (int i = 0; i < kM; ++i)
      for (int j = 0; j < n; ++j)
        for (int k = 0; k < kK; ++k) expected[i * n + j] += a[i * kK + k] * b[j * kK + k];
    for (const Operand a_from : {Operand::rows, Operand::transposed, Operand::registers})
      for (const Operand b_from : {Operand::rows, Operand::transposed}) {
        const bool a_turned = a_from == Operand::transposed;
        const bool b_turned = b_from == Operand::transposed;
        const OnGpu left({64, 64}, dtype, a_turned ? transposed(a, kM, kK) : a);
        const OnGpu right(b_turned ? Shape{kK, n} : Shape{n, kK}, dtype,
                          b_turned ? transposed(b, n, kK) : b);
        const OnGpu problem({kM, n}, DType::f32);
        multiply_once(left.tensor(), a_from, right.tensor(), b_from, problem.tensor(),
                      gpu().stream());
        EXPECT_EQ(problem.read(), expected) << "n " << n << ", a " << static_cast<int>(a_from)
                                            << ", b " << static_cast<int>(b_from);
      }
  }
}

TEST_P(HopperPrimitives, BoxesAreCopiedAndCutOffAtTheTensorsEnd) {
  const DType dtype = GetParam();
  constexpr int kX = 80, kY = 3, kZ = 2, kRows = 150;
  const std::vector<double> values = small_integers(kX * kY * kZ * kRows, 3);
  const OnGpu tensor({kRows, kZ, kY, kX}, dtype, values);
  for (const int x : {0, 64})
    for (const int row : {0, 64, 128}) {
      constexpr int y = 2, z = 1;
      const OnGpu box({128, 64}, dtype), copy({kRows, kZ * kY, kX}, dtype);
      copy_box(tensor.tensor(), x, y, z, row, box.tensor(), copy.tensor(), gpu().stream());
      const std::vector<double> found = box.read(), copied = copy.read();
      for (int i = 0; i < 128; ++i)
        for (int j = 0; j < 64; ++j) {
          const bool inside = row + i < kRows && x + j < kX;
          const int at = (((row + i) * kZ + z) * kY + y) * kX + x + j;
          ASSERT_EQ(found[i * 64 + j], inside ? values[at] : 0.0)
              << x << ", " << row + i << ", " << j;
        }
      for (int i = 0; i < static_cast<int>(values.size()); ++i) {
        const int column = i % kX, other = i / kX % (kY * kZ), line = i / (kX * kY * kZ);
        const bool inside = other == z * kY + y && line >= row && line < row + 128 && column >= x &&
                            column < x + 64;
        ASSERT_EQ(std::isnan(copied[i]), !inside) << line << ", " << other << ", " << column;
        if (inside) {
          ASSERT_EQ(copied[i], values[i]);
        }
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Types, HopperPrimitives, ::testing::Values(DType::bf16, DType::f16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace trireme::kernels::cuda
