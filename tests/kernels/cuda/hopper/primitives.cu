#include "primitives.hpp"

#include <type_traits>

#include "kernels/cuda/attention/launch.cuh"
#include "kernels/cuda/hopper/layouts.hpp"
#include "kernels/cuda/hopper/tensor_map.hpp"
#include "kernels/cuda/hopper/tma.cuh"
#include "kernels/cuda/hopper/wgmma.cuh"

namespace trireme::kernels::cuda {
namespace {

[[maybe_unused]] constexpr int kK = 64;  // one panel

// Lays a matrix [rows, columns] out as a tile.
template <typename T>
__device__ void lay_out(unsigned char* tile, const T* from, int rows, int columns) {
  for (int i = threadIdx.x; i < rows * columns; i += blockDim.x) {
    const int row = i / columns, column = i % columns;
    *reinterpret_cast<T*>(tile + tile_unit(rows, row, column / 8) + column % 8 * 2) = from[i];
  }
}

template <typename T, int N, Operand kA, Operand kB>
__global__ void __launch_bounds__(128) multiply(const T* a, const T* b, float* c) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr bool kTransposedA = kA == Operand::transposed, kTransposedB = kB == Operand::transposed;
  unsigned char* const a_tile = aligned_shared_memory();
  unsigned char* const b_tile = a_tile + kK * kPanelRowBytes;
  lay_out(a_tile, a, 64, kK);
  lay_out(b_tile, b, kTransposedB ? kK : N, kTransposedB ? N : kK);
  publish_shared();
  __syncthreads();

  const int thread = threadIdx.x;
  const std::uint64_t a_matrix = matrix_descriptor(shared_address(a_tile), kK * kPanelRowBytes);
  const std::uint64_t b_matrix = matrix_descriptor(shared_address(b_tile), kK * kPanelRowBytes);
  float sums[N / 2] = {};
  std::uint32_t fragments[kK / 16][4];
  if constexpr (kA == Operand::registers) {
    for (int k = 0; k < kK / 16; ++k)
      for (int i = 0; i < 4; ++i) {
        const int e = 8 * k + 2 * i;
        fragments[k][i] = *reinterpret_cast<const std::uint32_t*>(
            a + accumulator_row(thread, e) * kK + accumulator_column(thread, e));
      }
    warpgroup_fence_operand(fragments);
  }
  warpgroup_fence_operand(sums);
  warpgroup_arrive();
#pragma unroll
  for (int k = 0; k < kK / 16; ++k) {
    const std::uint64_t b_step = advanced(b_matrix, kTransposedB ? row_step(k) : column_step(N, k));
    if constexpr (kA == Operand::registers) {
      wgmma<T, kTransposedB>(sums, fragments[k], b_step);
    } else {
      wgmma<T, kTransposedA, kTransposedB>(
          sums, advanced(a_matrix, kTransposedA ? row_step(k) : column_step(64, k)), b_step, k > 0);
    }
  }
  warpgroup_commit_batch();
  warpgroup_wait<0>();
  warpgroup_fence_operand(sums);
  for (int e = 0; e < N / 2; ++e)
    c[accumulator_row(thread, e) * N + accumulator_column(thread, e)] = sums[e];
#endif
}

constexpr int kBoxRows = 128;

__global__ void __launch_bounds__(128)
    copy(const __grid_constant__ CUtensorMap from, const __grid_constant__ CUtensorMap to, int x,
         int y, int z, int row, int ys, std::uint16_t* box) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  unsigned char* const panel = aligned_shared_memory();
  auto* const arrived = reinterpret_cast<Barrier*>(panel + kBoxRows * kPanelRowBytes);
  if (threadIdx.x == 0) {
    make_barrier(arrived, 1);
    publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    arrive_expect_tx(arrived, kBoxRows * kPanelRowBytes);
    tma_load(panel, from, arrived, x, y, z, row);
  }
  wait(arrived, 0);
  for (int i = threadIdx.x; i < kBoxRows * kPanelColumns; i += blockDim.x) {
    const int at = panel_unit(i / kPanelColumns, i % kPanelColumns / 8) + i % 8 * 2;
    box[i] = *reinterpret_cast<std::uint16_t*>(panel + at);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    tma_store(to, panel, x, z * ys + y, row);
    commit_stores();
    wait_stores_read();
  }
#endif
}

template <typename Function>
void dispatch_operand(Operand operand, Function&& function) {
  if (operand == Operand::rows) {
    function(std::integral_constant<Operand, Operand::rows>());
  } else if (operand == Operand::transposed) {
    function(std::integral_constant<Operand, Operand::transposed>());
  } else {
    function(std::integral_constant<Operand, Operand::registers>());
  }
}

template <typename Function>
void dispatch_columns(std::int64_t n, Function&& function) {
  switch (n) {
    case 64:
      return function(std::integral_constant<int, 64>());
    case 80:
      return function(std::integral_constant<int, 80>());
    case 96:
      return function(std::integral_constant<int, 96>());
    case 112:
      return function(std::integral_constant<int, 112>());
    case 192:
      return function(std::integral_constant<int, 192>());
    default:
      return function(std::integral_constant<int, 128>());
  }
}

Context context_of(CUstream_st* stream) {
  return {.stream = stream, .capability = 90, .shared_memory_bytes = 227 << 10};
}

}  // namespace

bool is_hopper() {
  int major = 0, minor = 0;
  TRIREME_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  TRIREME_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
  return major == 9 && minor == 0;
}

void multiply_once(const Tensor& a, Operand a_from, const Tensor& b, Operand b_from,
                   const Tensor& c, CUstream_st* stream) {
  dispatch_half(a.dtype, [&](auto zero) {
    dispatch_columns(c.shape[1], [&](auto columns) {
      dispatch_operand(a_from, [&](auto a_operand) {
        dispatch_operand(b_from, [&](auto b_operand) {
          using T = decltype(zero);
          constexpr int kN = decltype(columns)::value;
          constexpr Operand kA = decltype(a_operand)::value, kB = decltype(b_operand)::value;
          if constexpr (kB != Operand::registers) {
            launch(multiply<T, kN, kA, kB>, 1, 128, (64 + 3 * 64 + 64) * kPanelRowBytes,
                   context_of(stream), a.as<T>(), b.as<T>(), c.as<float>());
          }
        });
      });
    });
  });
}

void copy_box(const Tensor& tensor, int x, int y, int z, int row, const Tensor& box,
              const Tensor& copy_of_tensor, CUstream_st* stream) {
  const Shape& shape = tensor.shape;
  const std::int64_t xs = shape[3], ys = shape[2], zs = shape[1], rows = shape[0];
  const CUtensorMap from = make_tensor_map<4>(
      tensor.dtype, tensor.data,
      {{{xs, 1, kPanelColumns}, {ys, xs, 1}, {zs, ys * xs, 1}, {rows, zs * ys * xs, kBoxRows}}});
  const CUtensorMap to = make_tensor_map<3>(
      tensor.dtype, copy_of_tensor.data,
      {{{xs, 1, kPanelColumns}, {zs * ys, xs, 1}, {rows, zs * ys * xs, kBoxRows}}});
  launch(copy, 1, 128, kBoxRows * kPanelRowBytes + 8, context_of(stream), from, to, x, y, z, row,
         static_cast<int>(ys), static_cast<std::uint16_t*>(box.data));
}

}  // namespace trireme::kernels::cuda
