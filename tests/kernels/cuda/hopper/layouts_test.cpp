#include "kernels/cuda/hopper/layouts.hpp"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace trireme::kernels::cuda {
namespace {

TEST(HopperLayouts, UnitsOfATileTakeItsBytesOnce) {
  for (const int rows : {64, 128})
    for (const int panels : {1, 2, 4}) {
      std::set<int> taken;
      for (int row = 0; row < rows; ++row)
        for (int unit = 0; unit < 8 * panels; ++unit) {
          const int at = tile_unit(rows, row, unit);
          EXPECT_EQ(at % 16, 0);
          EXPECT_LT(at, rows * panels * kPanelRowBytes);
          taken.insert(at);
        }
      EXPECT_EQ(static_cast<int>(taken.size()), rows * panels * 8);
    }
  EXPECT_EQ(panels_of(64), 1);
  EXPECT_EQ(panels_of(80), 2);
  EXPECT_EQ(panels_of(128), 2);
}

TEST(HopperLayouts, EightRowsOfAColumnLieInDifferentBanks) {
  for (int row = 0; row < 64; row += 8)
    for (int unit = 0; unit < 8; ++unit) {
      std::set<int> banks;
      for (int i = 0; i < 8; ++i) banks.insert(panel_unit(row + i, unit) % 128);
      EXPECT_EQ(banks.size(), 8u);
    }
  for (int row = 0; row < 64; row += 8)
    for (int unit = 0; unit < 4; ++unit) {
      std::set<int> banks;
      for (int i = 0; i < 8; ++i) banks.insert(half_panel_unit(row + i, unit) % 128);
      EXPECT_EQ(banks.size(), 8u);
    }
}

// The fields of a descriptor, and the 128-byte permutation, which works on addresses: bits 7 .. 9
// are added to bits 4 .. 6. Source: PTX ISA, "Matrix Descriptor Format" and "Strides".
struct Described {
  int start, leading, stride, swizzle;

  explicit Described(std::uint64_t descriptor)
      : start(static_cast<int>(descriptor & 0x3FFF) << 4),
        leading(static_cast<int>(descriptor >> 16 & 0x3FFF) << 4),
        stride(static_cast<int>(descriptor >> 32 & 0x3FFF) << 4),
        swizzle(static_cast<int>(descriptor >> 62)) {
    EXPECT_EQ(descriptor & 0x3FFF'C000'C000'C000, 0u) << "bits that have to be zero";
  }

  static int permuted(int address) { return address ^ (address >> 7 & 7) << 4; }
  // Element (m, k) of a matrix stored with k along the rows.
  int along(int m, int k) const {
    return permuted(start + m / 8 * stride + m % 8 * kPanelRowBytes + 2 * k);
  }
  // Element (m, k) of a matrix stored with k as rows.
  int down(int m, int k) const {
    return permuted(start + m / 64 * leading + k / 8 * stride + k % 8 * kPanelRowBytes +
                    2 * (m % 64));
  }
};

int address_of(int tile, int rows, int row, int column) {
  return tile + tile_unit(rows, row, column / 8) + column % 8 * 2;
}

TEST(HopperLayouts, DescriptorsFindTheElementsOfATile) {
  for (const int tile : {0, 1024, 229376 - 32768})
    for (const int rows : {64, 128}) {
      const std::uint64_t along = matrix_descriptor(tile, 0);
      const std::uint64_t down = matrix_descriptor(tile, rows * kPanelRowBytes);
      EXPECT_EQ(Described(along).swizzle, 1);
      EXPECT_EQ(Described(along).stride, 1024);
      for (int step = 0; step < 8; ++step) {
        const Described part(advanced(along, column_step(rows, step)));
        for (int row = 0; row < rows; ++row)
          for (int k = 0; k < 16; ++k)
            ASSERT_EQ(part.along(row, k), address_of(tile, rows, row, 16 * step + k));
      }
      for (int step = 0; step < rows / 16; ++step) {
        const Described part(advanced(down, row_step(step)));
        for (int column = 0; column < 128; ++column)
          for (int k = 0; k < 16; ++k)
            ASSERT_EQ(part.down(column, k), address_of(tile, rows, 16 * step + k, column));
      }
    }
}

TEST(HopperLayouts, RowsInTheMiddleOfATileAreATile) {
  const Described part(matrix_descriptor(2048 + 64 * kPanelRowBytes, 0));
  for (int row = 0; row < 64; ++row)
    for (int k = 0; k < 16; ++k) ASSERT_EQ(part.along(row, k), address_of(2048, 128, 64 + row, k));
}

TEST(HopperLayouts, AccumulatorsAreHeldOnceAndServeAsOperandA) {
  for (const int n : {64, 80, 128}) {
    std::vector<int> held(64 * n);
    for (int thread = 0; thread < 128; ++thread)
      for (int e = 0; e < n / 2; ++e)
        ++held[accumulator_row(thread, e) * n + accumulator_column(thread, e)];
    EXPECT_EQ(held, std::vector<int>(64 * n, 1));
  }
  // Register i of operand A, of step k: rows l / 4 + 8 (i % 2), columns 2 (l % 4) + 8 (i / 2).
  for (int thread = 0; thread < 128; ++thread)
    for (int k = 0; k < 4; ++k)
      for (int i = 0; i < 4; ++i)
        for (int half = 0; half < 2; ++half) {
          const int e = 8 * k + 2 * i + half, lane = thread % 32;
          EXPECT_EQ(accumulator_row(thread, e), thread / 32 * 16 + lane / 4 + 8 * (i % 2));
          EXPECT_EQ(accumulator_column(thread, e), 16 * k + 2 * (lane % 4) + 8 * (i / 2) + half);
        }
}

}  // namespace
}  // namespace trireme::kernels::cuda
