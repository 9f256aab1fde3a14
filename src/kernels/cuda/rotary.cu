// Rotary positions, in place in qkv; bound by bytes.
#include "kernels/rotary.hpp"

#include "kernels/cuda/common/elementwise.cuh"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/qk_layout.cuh"
#include "kernels/cuda/rotary_pair.cuh"

namespace trireme::kernels::cuda {
namespace {

/// Rotates the pairs (i, i + d/2) of heads: columns are those pairs of all heads of q and k.
template <typename T, int kWidth>
struct RotatePairs {
  static constexpr int kUnroll = 2;
  struct Inputs {
    Elements<T, kWidth> low, high;
    Elements<float, kWidth> cosines, sines;
  };

  T* qkv;
  const float* table;
  const std::int32_t* positions;
  std::int64_t first_position;
  float sign;
  Divisor half, batch;
  std::uint32_t columns;

  __device__ T* pair(std::uint32_t row, std::uint32_t column) const {
    const std::uint32_t head = half.quotient(column);
    return qkv + std::int64_t{row} * columns + head * half.divisor() + column;
  }
  __device__ Inputs load(std::uint32_t row, std::uint32_t column) const {
    const std::int64_t position =
        positions != nullptr ? positions[row] : first_position + batch.quotient(row);
    const std::uint32_t i = column - half.quotient(column) * half.divisor();
    const float* cosines = table + position * 2 * half.divisor() + i;
    const T* low = pair(row, column);
    return {cuda::load<kWidth>(low), cuda::load<kWidth>(low + half.divisor()),
            cuda::load<kWidth>(cosines), cuda::load<kWidth>(cosines + half.divisor())};
  }
  __device__ void store(std::uint32_t row, std::uint32_t column, const Inputs& inputs) const {
    Values<kWidth> low = widen(inputs.low), high = widen(inputs.high);
    const Values<kWidth> cosines = widen(inputs.cosines), sines = widen(inputs.sines);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const RotatedPair pair = rotate_pair(low[i], high[i], cosines[i], sign * sines[i]);
      low[i] = pair.low;
      high[i] = pair.high;
    }
    T* to = pair(row, column);
    cuda::store(to, narrow<T>(low));
    cuda::store(to + half.divisor(), narrow<T>(high));
  }
};

}  // namespace

void rotary(const Rotary& args, const Context& context) {
  const char* op = "rotary";
  const DType dtype = args.qkv.dtype;
  const QkLayout layout = layout_of(op, args.qkv, args.heads, args.kv_heads);
  TRIREME_CHECK(layout.d % 2 == 0, "{}: heads of {} have no pairs", op, layout.d);
  const auto [positions, columns] = extents_of(op, "table", args.table);
  check_matrix(op, "table", args.table, DType::f32, {positions, layout.d});
  TRIREME_CHECK(args.positions || (args.first_position >= 0 &&
                                   args.first_position + args.qkv.shape[0] <= positions),
                "{}: positions {} to {} of a table of {}", op, args.first_position,
                args.first_position + args.qkv.shape[0], positions);
  if (layout.rows == 0) return;
  const std::int64_t half = layout.d / 2;
  dispatch_cuda(dtype, [&](auto zero) {
    using T = decltype(zero);
    T* qkv = args.qkv.as<T>();
    const float* table = args.table.as<float>();
    const bool vectors = rows_aligned16<T>(half, qkv) && rows_aligned16<float>(half, table);
    dispatch_width<T>(vectors, [&](auto width) {
      const RotatePairs<T, width> pairs{
          .qkv = qkv,
          .table = table,
          .positions = args.positions,
          .first_position = args.first_position,
          .sign = args.inverse ? -1.0f : 1.0f,
          .half = Divisor(static_cast<std::uint32_t>(half)),
          .batch = Divisor(static_cast<std::uint32_t>(args.qkv.shape[1])),
          .columns = static_cast<std::uint32_t>(layout.columns())};
      launch_rows<width>(op, pairs, {layout.rows, layout.qk_heads() * half}, context);
    });
  });
}

}  // namespace trireme::kernels::cuda
