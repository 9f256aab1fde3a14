// Gradient of the word embedding, in a fixed order and without atomics: the tokens are sorted by
// row (stably, so tokens of one row stay in order), chunks of them are summed run by run, and the
// few runs that lie in several chunks are put together afterwards. A token of which a text is full
// is a run like any other, only longer.
//
// Bound by bytes: reads every element of dout once and every touched row of the table, writes the
// latter; the sort moves some 50 bytes a token.
#include "kernels/embedding.hpp"

#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/common/arithmetic.hpp"
#include "kernels/cuda/common/elements.cuh"
#include "kernels/cuda/workspace.hpp"

namespace trireme::kernels::cuda {
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
