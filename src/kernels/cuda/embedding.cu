// Bound by bytes: the look-up moves 4 bytes an element in half precision (the rows of frequent
// tokens come from the caches), position_dropout 4, position_backward reads 2. embedding_backward:
// see there.
#include "kernels/vocabulary.hpp"

#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/common/arithmetic.hpp"
#include "kernels/cuda/common/elementwise.cuh"
#include "kernels/cuda/workspace.hpp"

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

// ---- embedding_backward
//
// In a fixed order and without atomics: the tokens are sorted by row (stably, so tokens of one row
// stay in order), chunks of them are summed run by run, and the few runs that lie in several chunks
// are put together afterwards. A token of which a text is full is a run like any other, only
// longer.
//
// Bound by bytes: reads every element of dout once and every touched row of the table, writes the
// latter; the sort moves some 50 bytes a token.

namespace {

constexpr int kThreads = 128;

/// The row of every token in this shard's table, `rows` for those of other shards, and its number.
__global__ void __launch_bounds__(kThreads)
    list_tokens(const std::int32_t* ids, std::int64_t tokens, std::int64_t first_row,
                std::int64_t rows, std::uint32_t* row_of, std::uint32_t* token) {
  const std::int64_t t = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (t >= tokens) return;
  const std::int64_t row = ids[t] - first_row;
  row_of[t] = static_cast<std::uint32_t>(row >= 0 && row < rows ? row : rows);
  token[t] = static_cast<std::uint32_t>(t);
}

/// The tokens, sorted by row, and where sums of them go.
struct SortedTokens {
  const std::uint32_t* rows;
  const std::uint32_t* order;  // their places in the batch
  std::int64_t tokens;
  std::uint32_t none;  // the row of tokens of other shards
  std::int64_t h;
  float* dtable;
  float* heads;  // [chunks, h]
  float* tails;
};

template <int kWidth>
__device__ void store_sum(float* out, Values<kWidth> values, const Values<kWidth>& sums) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i) values[i] += sums[i];
  store(out, narrow<float>(values));
}

/// Block (c, y) sums chunk c of the tokens for its groups of columns. What a batch of tokens reads,
/// of dout and of the table, is loaded together: most rows of a batch may be of one token each, and
/// loading the table's row only when a run ends would cost one latency after another.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads) sum_runs(SortedTokens sorted, const T* dout) {
  constexpr int kUnroll = 4;
  static_assert(kEmbeddingChunk % kUnroll == 0);
  const std::int64_t column = (std::int64_t{blockIdx.y} * kThreads + threadIdx.x) * kWidth;
  const TokenChunk chunk(sorted.rows, sorted.tokens, blockIdx.x, kEmbeddingChunk);
  if (column >= sorted.h) return;
  Values<kWidth> sums = {};
  for (std::int64_t first = chunk.begin; first < chunk.end; first += kUnroll) {
    Elements<T, kWidth> elements[kUnroll];
    Elements<float, kWidth> before[kUnroll];  // of the table, where a whole run ends
    RunSum destinations[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const std::int64_t i = first + u;
      if (i >= chunk.end || sorted.rows[i] == sorted.none) continue;
      elements[u] = load<kWidth>(dout + sorted.order[i] * sorted.h + column);
      destinations[u] = chunk.destination(i);
      if (chunk.run_ends(i) && destinations[u] == RunSum::whole)
        before[u] = load<kWidth>(sorted.dtable + sorted.rows[i] * sorted.h + column);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const std::int64_t i = first + u;
      if (i >= chunk.end || sorted.rows[i] == sorted.none) return;  // those sort last
      const Values<kWidth> values = widen(elements[u]);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) sums[k] += values[k];
      if (!chunk.run_ends(i)) continue;
      if (destinations[u] == RunSum::whole)
        store_sum(sorted.dtable + sorted.rows[i] * sorted.h + column, widen(before[u]), sums);
      else
        store((destinations[u] == RunSum::head ? sorted.heads : sorted.tails) +
                  std::int64_t{blockIdx.x} * sorted.h + column,
              narrow<float>(sums));
      sums = {};
    }
  }
}

/// The number of chunks after `chunk` whose first token is of `row`, found by the whole block.
__device__ std::int64_t chunks_that_follow(const SortedTokens& sorted, std::int64_t chunk,
                                           std::uint32_t row) {
  std::int64_t found = 0;
  while (true) {
    const std::int64_t begin = (chunk + 1 + found + threadIdx.x) * kEmbeddingChunk;
    const int more = __syncthreads_count(begin < sorted.tokens && sorted.rows[begin] == row);
    found += more;
    if (more < kThreads) return found;
  }
}

/// Adds the sum of the run that begins in chunk blockIdx.x and continues after it, if there is one.
template <int kWidth>
__global__ void __launch_bounds__(kThreads) join_runs(SortedTokens sorted) {
  const TokenChunk chunk(sorted.rows, sorted.tokens, blockIdx.x, kEmbeddingChunk);
  const std::uint32_t row = sorted.rows[chunk.end - 1];
  if (row == sorted.none || !chunk.has_tail()) return;
  const std::int64_t followers = chunks_that_follow(sorted, blockIdx.x, row);
  const std::int64_t column = (std::int64_t{blockIdx.y} * kThreads + threadIdx.x) * kWidth;
  if (column >= sorted.h) return;
  const std::int64_t own = std::int64_t{blockIdx.x} * sorted.h + column;
  Values<kWidth> sums = widen(load<kWidth>(sorted.tails + own));
#pragma unroll 8
  for (std::int64_t i = 1; i <= followers; ++i) {
    const Values<kWidth> more = widen(load<kWidth>(sorted.heads + own + i * sorted.h));
#pragma unroll
    for (int k = 0; k < kWidth; ++k) sums[k] += more[k];
  }
  float* out = sorted.dtable + row * sorted.h + column;
  store_sum(out, widen(load<kWidth>(out)), sums);
}

/// Sorts the tokens within the first embedding_pairs_workspace() + embedding_sort_workspace() bytes
/// of the workspace; fills in `rows` and `order`.
void sort_tokens(const EmbeddingBackward& args, std::int64_t tokens, std::int64_t rows,
                 const Context& context, SortedTokens& sorted) {
  std::uint32_t* arrays[4];
  for (int i = 0; i < 4; ++i)
    arrays[i] = reinterpret_cast<std::uint32_t*>(context.workspace +
                                                 i * embedding_pairs_workspace(tokens) / 4);
  const auto blocks = static_cast<unsigned>((tokens + kThreads - 1) / kThreads);
  list_tokens<<<blocks, kThreads, 0, context.stream>>>(args.ids, tokens, args.first_row, rows,
                                                       arrays[0], arrays[1]);
  TRIREME_CUDA_LAUNCHED(list_tokens);
  cub::DoubleBuffer<std::uint32_t> row_of(arrays[0], arrays[2]), order(arrays[1], arrays[3]);
  const int bits = std::bit_width(static_cast<std::uint32_t>(rows));
  const auto sort = [&](void* storage, std::size_t& bytes) {
    TRIREME_CUDA(cub::DeviceRadixSort::SortPairs(
        storage, bytes, row_of, order, static_cast<int>(tokens), 0, bits, context.stream));
  };
  std::size_t bytes = 0;
  sort(nullptr, bytes);
  TRIREME_CHECK(bytes <= embedding_sort_workspace(tokens),
                "embedding_backward: sorting {} tokens takes {} bytes, planned were {}", tokens,
                bytes, embedding_sort_workspace(tokens));
  sort(context.workspace + embedding_pairs_workspace(tokens), bytes);
  sorted.rows = row_of.Current();
  sorted.order = order.Current();
}

}  // namespace

void embedding_backward(const EmbeddingBackward& args, const Context& context) {
  const char* op = "embedding_backward";
  const DType dtype = args.dout.dtype;
  const Extents table = extents_of(op, "dtable", args.dtable);
  const std::int64_t h = table.columns;
  const std::int64_t tokens = args.dout.size() / std::max<std::int64_t>(h, 1);
  check_matrix(op, "dtable", args.dtable, DType::f32, table);
  check_matrix(op, "dout", args.dout, dtype, {tokens, h});
  TRIREME_CHECK(args.ids != nullptr || tokens == 0, "{}: ids has no memory", op);
  TRIREME_CHECK(tokens < std::int64_t{1} << 31 && table.rows < std::int64_t{1} << 31,
                "{}: {} tokens and {} rows, expected fewer than 2^31", op, tokens, table.rows);
  check_workspace(op, context, embedding_backward_workspace(tokens, h));
  if (tokens == 0) return;

  const std::int64_t chunks = (tokens + kEmbeddingChunk - 1) / kEmbeddingChunk;
  auto* heads = reinterpret_cast<float*>(context.workspace + embedding_pairs_workspace(tokens) +
                                         embedding_sort_workspace(tokens));
  SortedTokens sorted{.tokens = tokens,
                      .none = static_cast<std::uint32_t>(table.rows),
                      .h = h,
                      .dtable = args.dtable.as<float>(),
                      .heads = heads,
                      .tails = heads + chunks * h};
  sort_tokens(args, tokens, table.rows, context, sorted);
  dispatch_cuda(dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* dout = args.dout.as<T>();
    dispatch_width<T>(rows_aligned16<T>(h, dout, sorted.dtable), [&](auto width) {
      const dim3 grid(static_cast<unsigned>(chunks),
                      static_cast<unsigned>((h / width + kThreads - 1) / kThreads));
      sum_runs<T, width><<<grid, kThreads, 0, context.stream>>>(sorted, dout);
      TRIREME_CUDA_LAUNCHED(sum_runs);
      join_runs<width><<<grid, kThreads, 0, context.stream>>>(sorted);
      TRIREME_CUDA_LAUNCHED(join_runs);
    });
  });
}

}  // namespace trireme::kernels::cuda
