// The smallest kernels that use Hopper's copies and GEMMs, for their tests.
#pragma once

#include <cstdint>

#include "core/tensor.hpp"

struct CUstream_st;

namespace trireme::kernels::cuda {

/// Whether GPU 0 is of compute capability 9.0.
bool is_hopper();

/// How wgmma gets an operand.
enum class Operand { rows, transposed, registers };

/// c [64, n] = a b^T, fp32, with one wgmma of that n for each 16 of k = 64, by one warpgroup. a
/// [64, 64], stored as [k, 64] when `a_from` is transposed; b [n, 64], stored as [k, n] when
/// transposed. n is 64, 80, 96, 112 or 128.
void multiply_once(const Tensor& a, Operand a_from, const Tensor& b, Operand b_from,
                   const Tensor& c, CUstream_st* stream);

/// Copies the box of 64 columns and 128 rows at (x, y, z, row) of `tensor` [rows, z, y, x] to
/// shared memory, from there to `box` [128, 64], and to the same place of `copy`, shaped as
/// `tensor` with y and z folded.
void copy_box(const Tensor& tensor, int x, int y, int z, int row, const Tensor& box,
              const Tensor& copy, CUstream_st* stream);

}  // namespace trireme::kernels::cuda
