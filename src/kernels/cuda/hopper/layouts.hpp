// Where elements lie in the tiles that Hopper's tensor cores and bulk copies work on, 16-bit types.
// Pure arithmetic, checked on the CPU. Source: PTX ISA, "Asynchronous Warpgroup Level Matrix
// Instructions" and "Tensor swizzling modes".
#pragma once

#include <cstdint>

#include "core/philox.hpp"

namespace trireme::kernels::cuda {

/// A tile is cut into panels of kPanelColumns columns: each row of a panel takes kPanelRowBytes,
/// its eight 16-byte units permuted by the row ("128-byte swizzle"), so that eight rows of one
/// column lie in different banks. Panels begin at multiples of kPanelAlignment.
inline constexpr int kPanelColumns = 64;
inline constexpr int kPanelRowBytes = 128;
inline constexpr int kPanelAlignment = 8 * kPanelRowBytes;

/// Half a panel: its rows' four 16-byte units are permuted by pairs of rows ("64-byte swizzle"), so
/// that eight rows of one column lie in different banks, too.
inline constexpr int kHalfPanelColumns = 32;
inline constexpr int kHalfPanelRowBytes = 64;

constexpr int panels_of(int columns) { return (columns + kPanelColumns - 1) / kPanelColumns; }

/// Bytes from the beginning of a panel to unit `unit` (8 elements) of row `row`.
TRIREME_HOST_DEVICE constexpr int panel_unit(int row, int unit) {
  return row * kPanelRowBytes + ((unit ^ row) & 7) * 16;
}

/// The same for half a panel.
TRIREME_HOST_DEVICE constexpr int half_panel_unit(int row, int unit) {
  return row * kHalfPanelRowBytes + ((unit ^ row / 2) & 3) * 16;
}

/// Bytes from the beginning of a tile of `rows` rows to unit `unit` of row `row`.
TRIREME_HOST_DEVICE constexpr int tile_unit(int rows, int row, int unit) {
  return unit / 8 * rows * kPanelRowBytes + panel_unit(row, unit % 8);
}

/// What wgmma is told about a matrix in shared memory whose panels are swizzled as above.
/// `panel_bytes`: from one panel to the next, for matrices stored with k as rows; `address`: of
/// its first element, where the panel's permutation begins anew every 1024 bytes.
TRIREME_HOST_DEVICE constexpr std::uint64_t matrix_descriptor(std::uint32_t address,
                                                              int panel_bytes) {
  constexpr std::uint64_t kSwizzle128 = 1;
  return static_cast<std::uint64_t>(address >> 4 & 0x3FFF) |
         static_cast<std::uint64_t>(panel_bytes >> 4 & 0x3FFF) << 16 |
         static_cast<std::uint64_t>(kPanelAlignment >> 4) << 32 | kSwizzle128 << 62;
}

/// The descriptor of what begins `bytes` (a multiple of 16) after what `descriptor` tells of.
TRIREME_HOST_DEVICE constexpr std::uint64_t advanced(std::uint64_t descriptor, int bytes) {
  return descriptor + static_cast<std::uint64_t>(bytes >> 4);
}

/// Bytes to step k, 16 of the columns, of a tile of `rows` rows (k runs along the rows).
TRIREME_HOST_DEVICE constexpr int column_step(int rows, int k) {
  return k / 4 * rows * kPanelRowBytes + k % 4 * 32;
}
/// Bytes to step k, 16 of the rows (k runs down the columns).
TRIREME_HOST_DEVICE constexpr int row_step(int k) { return 16 * kPanelRowBytes * k; }

/// Where a warpgroup's thread holds element `e` of a 64 x n accumulator. Elements 8 k .. 8 k + 7,
/// rounded in pairs, are its part of columns 16 k .. 16 k + 15 as operand A.
TRIREME_HOST_DEVICE constexpr int accumulator_row(int thread, int e) {
  return thread / 32 * 16 + thread % 32 / 4 + e / 2 % 2 * 8;
}
TRIREME_HOST_DEVICE constexpr int accumulator_column(int thread, int e) {
  return e / 4 * 8 + thread % 4 * 2 + e % 2;
}

}  // namespace trireme::kernels::cuda
