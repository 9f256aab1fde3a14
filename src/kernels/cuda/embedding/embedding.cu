// Bound by bytes: the look-up moves 4 bytes an element in half precision (the rows of frequent
// tokens come from the caches), position_dropout 4, position_backward reads 2.
#include "kernels/embedding.hpp"

#include "kernels/cuda/common/dropout_mask.cuh"
#include "kernels/cuda/common/elementwise.cuh"

namespace trireme::kernels::cuda {
namespace {

template <typename T, int kWidth>
struct LookUp {
  static constexpr int kUnroll = 4;
  using Inputs = Elements<T, kWidth>;

  const std::int32_t* ids;
  const T* table;
  T* out;
  std::int64_t first_row, rows, h;

  __device__ Inputs load(std::uint32_t token, std::uint32_t column) const {
    const std::int64_t row = ids[token] - first_row;
    if (row < 0 || row >= rows) return {};
    return cuda::load<kWidth>(table + row * h + column);
  }
  __device__ void store(std::uint32_t token, std::uint32_t column, const Inputs& inputs) const {
    cuda::store(out + std::int64_t{token} * h + column, inputs);
  }
};

template <typename T, int kWidth>
struct AddPosition {
  static constexpr int kUnroll = 2;
  using Inputs = Elements<T, kWidth>;

  T* x;
  const T* position;
  const std::int32_t* rows;
  DropoutMask mask;
  Divisor batch;
  std::uint32_t first_position;
  std::int64_t h;

  __device__ Inputs load(std::uint32_t row, std::uint32_t column) const {
    return cuda::load<kWidth>(x + row * h + column);
  }
  __device__ void store(std::uint32_t row, std::uint32_t column, const Inputs& inputs) const {
    const std::uint32_t i = batch.quotient(row);
    const std::int64_t place = first_position + i, table_row = rows ? rows[row] : place;
    Values<kWidth> values = widen(inputs);
    const Values<kWidth> shift = widen(cuda::load<kWidth>(position + table_row * h + column));
#pragma unroll
    for (int k = 0; k < kWidth; ++k) values[k] += shift[k];
    mask.apply(values.values, row - i * batch.divisor(),
               static_cast<std::uint64_t>(place * h + column));
    cuda::store(x + row * h + column, narrow<T>(values));
  }
};

/// The sum over the batch for each group of a position.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kElementwiseThreads)
    sum_over_batch(const T* dout, float* dposition, std::int64_t positions, std::int64_t batch,
                   std::int64_t h) {
  constexpr int kUnroll = 8;
  const std::int64_t first =
      (std::int64_t{blockIdx.x} * kElementwiseThreads + threadIdx.x) * kWidth;
  if (first >= positions * h) return;
  const std::int64_t i = first / h, column = first % h;
  Values<kWidth> sums = {};
  for (std::int64_t begin = 0; begin < batch; begin += kUnroll) {
    Elements<T, kWidth> elements[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (begin + u < batch)
        elements[u] = load<kWidth>(dout + (i * batch + begin + u) * h + column);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (begin + u >= batch) break;
      const Values<kWidth> values = widen(elements[u]);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) sums[k] += values[k];
    }
  }
  const Values<kWidth> before = widen(load<kWidth>(dposition + first));
#pragma unroll
  for (int k = 0; k < kWidth; ++k) sums[k] += before[k];
  store(dposition + first, narrow<float>(sums));
}

}  // namespace

void embedding_forward(const EmbeddingForward& args, const Context& context) {
  const char* op = "embedding_forward";
  const DType dtype = args.table.dtype;
  const Extents table = extents_of(op, "table", args.table);
  const std::int64_t h = table.columns;
  const Extents extents{args.out.size() / std::max<std::int64_t>(h, 1), h};
  check_matrix(op, "table", args.table, dtype, table);
  check_matrix(op, "out", args.out, dtype, extents);
  TRIREME_CHECK(args.ids != nullptr || extents.rows == 0, "{}: ids has no memory", op);
  if (extents.rows == 0) return;
  dispatch_cuda(dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* rows = args.table.as<T>();
    T* out = args.out.as<T>();
    dispatch_width<T>(rows_aligned16<T>(h, rows, out), [&](auto width) {
      const LookUp<T, width> look_up{args.ids, rows, out, args.first_row, table.rows, h};
      launch_rows<width>(op, look_up, extents, context);
    });
  });
}

void position_dropout(const PositionDropout& args, const Context& context) {
  const char* op = "position_dropout";
  const DType dtype = args.x.dtype;
  TRIREME_CHECK(args.x.shape.rank() == 3, "{}: x is {}, expected [s, b, h]", op,
                to_string(args.x.shape));
  const Extents extents = extents_of(op, "x", args.x);
  const Extents positions = extents_of(op, "position", args.position);
  check_matrix(op, "x", args.x, dtype, extents);
  check_matrix(op, "position", args.position, dtype, {positions.rows, extents.columns});
  TRIREME_CHECK(args.rows || (args.first_position >= 0 &&
                              args.first_position + args.x.shape[0] <= positions.rows),
                "{}: positions {} to {} of a table of {}", op, args.first_position,
                args.first_position + args.x.shape[0] - 1, positions.rows);
  check_dropout(op, args.dropout);
  if (extents.rows == 0) return;
  dispatch_cuda(dtype, [&](auto zero) {
    using T = decltype(zero);
    T* x = args.x.as<T>();
    const T* position = args.position.as<T>();
    dispatch_width<T>(rows_aligned16<T>(extents.columns, x, position), [&](auto width) {
      const AddPosition<T, width> add{x,
                                      position,
                                      args.rows,
                                      DropoutMask(args.dropout),
                                      Divisor(static_cast<std::uint32_t>(args.x.shape[1])),
                                      static_cast<std::uint32_t>(args.first_position),
                                      extents.columns};
      launch_rows<width>(op, add, extents, context);
    });
  });
}

void position_backward(const PositionBackward& args, const Context& context) {
  const char* op = "position_backward";
  const DType dtype = args.dout.dtype;
  TRIREME_CHECK(args.dout.shape.rank() == 3, "{}: dout is {}, expected [s, b, h]", op,
                to_string(args.dout.shape));
  const Extents extents = extents_of(op, "dout", args.dout);
  const Extents table = extents_of(op, "dposition", args.dposition);
  const std::int64_t positions = args.dout.shape[0], batch = args.dout.shape[1];
  check_matrix(op, "dout", args.dout, dtype, extents);
  check_matrix(op, "dposition", args.dposition, DType::f32, {table.rows, extents.columns});
  TRIREME_CHECK(positions <= table.rows, "{}: {} positions, but a table of {}", op, positions,
                table.rows);
  if (extents.rows == 0) return;
  dispatch_cuda(dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* dout = args.dout.as<T>();
    float* dposition = args.dposition.as<float>();
    dispatch_width<T>(rows_aligned16<T>(extents.columns, dout, dposition), [&](auto width) {
      const std::int64_t groups = positions * (extents.columns / width);
      const auto blocks =
          static_cast<unsigned>((groups + kElementwiseThreads - 1) / kElementwiseThreads);
      sum_over_batch<T, width><<<blocks, kElementwiseThreads, 0, context.stream>>>(
          dout, dposition, positions, batch, extents.columns);
      TRIREME_CUDA_LAUNCHED(sum_over_batch);
    });
  });
}

}  // namespace trireme::kernels::cuda
