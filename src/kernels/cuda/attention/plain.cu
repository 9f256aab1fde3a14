// Attention on CUDA cores, 64 x 64 tiles of scores at a time: for fp32, and for prompts that follow
// cached keys. A block has 16 x 16 threads; thread (y, x) holds rows 4 y .. 4 y + 3 and columns x +
// 16 j of every tile. Bound by GEMMs: they run at the speed of fp32 multiply-adds fed from
// shared memory.
#include <cmath>

#include "kernels/cuda/attention/launch.cuh"
#include "kernels/cuda/attention/parameters.cuh"
#include "kernels/cuda/attention/tiles.hpp"
#include "kernels/cuda/common/elements.cuh"

namespace trireme::kernels::cuda {

inline constexpr int kPlainTile = 64;
inline constexpr int kPlainThreads = 256;

/// A matrix of `rows` rows of d elements, `stride` apart.
template <typename T>
struct HeadRows {
  T* data;
  std::int64_t stride;
  int rows;
  int d;

  /// Element (row, column), 0 outside.
  __device__ float at(int row, int column) const {
    return row < rows && column < d ? to_float(data[row * stride + column]) : 0.0f;
  }
  /// The rows from `begin` on.
  __device__ HeadRows from(int begin) const {
    return {data + begin * stride, stride, rows - begin, d};
  }
};

/// Shared memory of a block: two operands' slices, and one tile of weights.
struct PlainMemory {
  static constexpr int kSlice = 16;
  float rows[kPlainTile][kSlice + 1];
  float columns[kPlainTile][kSlice + 1];
  float weights[kPlainTile][kPlainTile + 1];
};

/// This thread's rows and first column.
struct PlainPlace {
  int row = threadIdx.x / 16 * 4;
  int column = threadIdx.x % 16;
};

/// tile = A B^T: rows 0 .. 63 of A by rows 0 .. 63 of B.
template <typename T>
__device__ void plain_gemms(float (&tile)[4][4], const HeadRows<const T>& a,
                            const HeadRows<const T>& b, PlainMemory& memory) {
  const PlainPlace place;
  for (auto& row : tile)
    for (float& value : row) value = 0.0f;
  for (int begin = 0; begin < a.d; begin += PlainMemory::kSlice) {
    __syncthreads();
    for (int i = threadIdx.x; i < kPlainTile * PlainMemory::kSlice; i += kPlainThreads) {
      const int row = i / PlainMemory::kSlice, k = i % PlainMemory::kSlice;
      memory.rows[row][k] = a.at(row, begin + k);
      memory.columns[row][k] = b.at(row, begin + k);
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < PlainMemory::kSlice; ++k)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float column = memory.columns[place.column + 16 * j][k];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          tile[i][j] = fmaf(memory.rows[place.row + i][k], column, tile[i][j]);
      }
  }
}

/// sum += W B: W the 64 x 64 tile that all threads hold parts of, B rows 0 .. 63.
template <typename T, int kColumns>
__device__ void plain_add_weighted(float (&sum)[4][kColumns], const float (&tile)[4][4],
                                   const HeadRows<const T>& b, PlainMemory& memory) {
  const PlainPlace place;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) memory.weights[place.row + i][place.column + 16 * j] = tile[i][j];
  __syncthreads();
  for (int k = 0; k < kPlainTile && k < b.rows; ++k) {
    float weight[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) weight[i] = memory.weights[place.row + i][k];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      // Sixteen threads read 16 neighbours, the other halves of the warps the same: from L1.
      const float value = b.at(k, place.column + 16 * c);
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i][c] = fmaf(weight[i], value, sum[i][c]);
    }
  }
}

/// Attention of the 64 queries of block blockIdx.x % blocks, head blockIdx.x / blocks: online
/// softmax over tiles of keys. Query i attends to keys first_keys(i) .. past + i, or to all from
/// first_keys(i) on. `factor(query, key)` multiplies probabilities, `finish(query, lse)` takes the
/// log-sum-exp.
template <typename T, int kColumns, typename Factor, typename Finish>
__device__ void plain_attend(const HeadRows<const T>& q, const HeadRows<const T>& k,
                             const HeadRows<const T>& v, const HeadRows<T>& out, int query_begin,
                             int past, bool causal, const FirstKeys& first_keys, float scale,
                             PlainMemory& memory, const Factor& factor, const Finish& finish) {
  const PlainPlace place;
  float largest[4], total[4], sum[4][kColumns] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    largest[i] = -INFINITY;
    total[i] = 0.0f;
  }
  const int end = causal ? min(k.rows, past + query_begin + kPlainTile) : k.rows;
  const int first_tile = first_keys.first_key_tile(query_begin, kPlainTile);
  for (int key_begin = first_tile * kPlainTile; key_begin < end; key_begin += kPlainTile) {
    float tile[4][4];
    plain_gemms<T>(tile, q.from(query_begin), k.from(key_begin), memory);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int query = query_begin + place.row + i;
      float most = largest[i];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int key = key_begin + place.column + 16 * j;
        const bool seen =
            key < k.rows && (!causal || key <= past + query) && !first_keys.hide(query, key);
        tile[i][j] = seen ? tile[i][j] * scale : -INFINITY;
        most = fmaxf(most, tile[i][j]);
      }
#pragma unroll
      for (int step = 8; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
      // A query whose document begins behind this tile has seen nothing yet.
      const float finite = most == -INFINITY ? 0.0f : most;
      const float correction = expf(largest[i] - finite);
      largest[i] = most;
      total[i] *= correction;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) sum[i][c] *= correction;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float probability = expf(tile[i][j] - finite);
        total[i] += probability;
        tile[i][j] = probability > 0.0f
                         ? probability * factor(query, key_begin + place.column + 16 * j)
                         : 0.0f;
      }
    }
    plain_add_weighted<T>(sum, tile, v.from(key_begin), memory);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int step = 8; step > 0; step /= 2) total[i] += __shfl_xor_sync(~0u, total[i], step);
    const int query = query_begin + place.row + i;
    if (query >= q.rows) continue;
    if (place.column == 0) finish(query, largest[i] + logf(total[i]));
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int column = place.column + 16 * c;
      if (column < out.d)
        out.data[query * out.stride + column] = from_float<T>(sum[i][c] / total[i]);
    }
  }
}

/// Calls function(integral_constant kColumns) with the columns that a thread holds of rows of d.
template <typename Function>
void dispatch_columns(int d, Function&& function) {
  if (d <= 64) return function(std::integral_constant<int, 4>());
  if (d <= 128) return function(std::integral_constant<int, 8>());
  function(std::integral_constant<int, 16>());
}

namespace {

__device__ HeadRows<const float> qkv_rows(const float* qkv, const AttentionSizes& sizes, int task,
                                          int part) {
  return {qkv + sizes.qkv_offset(task, part), sizes.qkv_stride(), sizes.length(task), sizes.d};
}

__device__ int plain_task(const AttentionSizes& sizes) {
  return static_cast<int>(blockIdx.x) / tiles_of(sizes.s, kPlainTile);
}
__device__ int plain_begin(const AttentionSizes& sizes) {
  return static_cast<int>(blockIdx.x) % tiles_of(sizes.s, kPlainTile) * kPlainTile;
}

// What a probability is multiplied by. Without dropout the threshold is 0, which is tested at
// run time, so that the kernels need not be compiled twice.
__device__ auto plain_factor(const AttentionDropout& dropout, const AttentionSizes& sizes,
                             int task) {
  const HeadDropout head(dropout, task / sizes.heads, task % sizes.heads, sizes.s);
  return [head, kept = dropout.kept](int query, int key) {
    return head.mask.threshold == 0 || head.keeps(query, key) ? kept : 0.0f;
  };
}

template <int kColumns>
__global__ void __launch_bounds__(kPlainThreads)
    plain_forward(const AttentionForwardParameters<float> p) {
  __shared__ PlainMemory memory;
  const AttentionSizes& sizes = p.sizes;
  const int task = plain_task(sizes);
  if (plain_begin(sizes) >= sizes.length(task)) return;
  float* lse = p.lse + std::int64_t{task} * sizes.s;
  plain_attend<float, kColumns>(
      qkv_rows(p.qkv, sizes, task, 0), qkv_rows(p.qkv, sizes, task, 1),
      qkv_rows(p.qkv, sizes, task, 2),
      {p.out + sizes.out_offset(task), sizes.out_stride(), sizes.length(task), sizes.d},
      plain_begin(sizes), 0, sizes.causal, first_keys_of(p.document_start, sizes, task), p.scale,
      memory, plain_factor(p.dropout, sizes, task),
      [&](int query, float value) { lse[query] = value; });
}

// P with dropout and dS for one element: P = exp(score - lse), dS = P (dP - delta).
template <typename Factor>
__device__ void plain_gradient(float& p, float& ds, const RowStatistics* statistics, int query,
                               int key, int s, bool causal, const FirstKeys& first_keys,
                               float scale, const Factor& factor) {
  if (query >= s || !attends(query, key, s, causal) || first_keys.hide(query, key)) {
    p = ds = 0.0f;
    return;
  }
  const RowStatistics row = statistics[query];
  const float probability = exp2f(fmaf(p, scale * kLog2E, -row.lse2)), kept = factor(query, key);
  ds = probability * (ds * kept - row.delta);
  p = probability * kept;
}

// dQ of 64 queries.
template <int kColumns>
__global__ void __launch_bounds__(kPlainThreads)
    plain_query_gradient(const AttentionBackwardParameters<float> p) {
  __shared__ PlainMemory memory;
  const AttentionSizes& sizes = p.sizes;
  const int task = plain_task(sizes), query_begin = plain_begin(sizes), s = sizes.length(task);
  if (query_begin >= s) return;
  const PlainPlace place;
  const HeadRows<const float> q = qkv_rows(p.qkv, sizes, task, 0).from(query_begin),
                              k = qkv_rows(p.qkv, sizes, task, 1),
                              v = qkv_rows(p.qkv, sizes, task, 2),
                              dout = HeadRows<const float>{p.dout + sizes.out_offset(task),
                                                           sizes.out_stride(), s, sizes.d}
                                         .from(query_begin);
  const RowStatistics* statistics = p.statistics + std::int64_t{task} * sizes.s;
  const auto factor = plain_factor(p.dropout, sizes, task);
  const FirstKeys first_keys = first_keys_of(p.document_start, sizes, task);
  const int first_tile = first_keys.first_key_tile(query_begin, kPlainTile);
  const int end = keys_end(s, query_begin + kPlainTile, sizes.causal);
  float dq[4][kColumns] = {};
  for (int key_begin = first_tile * kPlainTile; key_begin < end; key_begin += kPlainTile) {
    float probabilities[4][4], dscores[4][4];
    plain_gemms<float>(probabilities, q, k.from(key_begin), memory);
    plain_gemms<float>(dscores, dout, v.from(key_begin), memory);
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        plain_gradient(probabilities[i][j], dscores[i][j], statistics, query_begin + place.row + i,
                       key_begin + place.column + 16 * j, s, sizes.causal, first_keys, p.scale,
                       factor);
    plain_add_weighted<float>(dq, dscores, k.from(key_begin), memory);
  }
  float* to = p.dqkv + sizes.qkv_offset(task, 0);
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int query = query_begin + place.row + i, column = place.column + 16 * c;
      if (query < s && column < sizes.d)
        to[query * sizes.qkv_stride() + column] = dq[i][c] * p.scale;
    }
}

// dK and dV of 64 keys of a head of K and V, over the query heads that share it; scores are
// computed with keys as rows.
template <int kColumns>
__global__ void __launch_bounds__(kPlainThreads)
    plain_key_gradient(const AttentionBackwardParameters<float> p) {
  __shared__ PlainMemory memory;
  const AttentionSizes& sizes = p.sizes;
  const int group = sizes.heads / sizes.kv_heads, first_task = plain_task(sizes) * group;
  const int key_begin = plain_begin(sizes), s = sizes.length(first_task);
  if (key_begin >= s) return;
  const PlainPlace place;
  const HeadRows<const float> k = qkv_rows(p.qkv, sizes, first_task, 1).from(key_begin),
                              v = qkv_rows(p.qkv, sizes, first_task, 2).from(key_begin);
  const FirstKeys first_keys = first_keys_of(p.document_start, sizes, first_task);
  float dk[4][kColumns] = {}, dv[4][kColumns] = {};
  for (int task = first_task; task < first_task + group; ++task) {
    const HeadRows<const float> q = qkv_rows(p.qkv, sizes, task, 0),
                                dout = {p.dout + sizes.out_offset(task), sizes.out_stride(), s,
                                        sizes.d};
    const RowStatistics* statistics = p.statistics + std::int64_t{task} * sizes.s;
    const auto factor = plain_factor(p.dropout, sizes, task);
    for (int tile = first_query_tile(key_begin, kPlainTile, sizes.causal);
         tile < tiles_of(s, kPlainTile) &&
         first_keys.tile_reaches(tile, kPlainTile, key_begin + kPlainTile);
         ++tile) {
      const int query_begin = tile * kPlainTile;
      float probabilities[4][4], dscores[4][4];
      plain_gemms<float>(probabilities, k, q.from(query_begin), memory);
      plain_gemms<float>(dscores, v, dout.from(query_begin), memory);
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          plain_gradient(probabilities[i][j], dscores[i][j], statistics,
                         query_begin + place.column + 16 * j, key_begin + place.row + i, s,
                         sizes.causal, first_keys, p.scale, factor);
      plain_add_weighted<float>(dv, probabilities, dout.from(query_begin), memory);
      plain_add_weighted<float>(dk, dscores, q.from(query_begin), memory);
    }
  }
  const std::int64_t stride = sizes.qkv_stride();
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int key = key_begin + place.row + i, column = place.column + 16 * c;
      if (key >= s || column >= sizes.d) continue;
      p.dqkv[sizes.qkv_offset(first_task, 1) + key * stride + column] = dk[i][c] * p.scale;
      p.dqkv[sizes.qkv_offset(first_task, 2) + key * stride + column] = dv[i][c];
    }
}

std::int64_t plain_blocks(const AttentionSizes& sizes, int heads) {
  return std::int64_t{sizes.b} * heads * tiles_of(sizes.s, kPlainTile);
}

}  // namespace

void launch_plain_forward(const AttentionForward& args, const Context& context) {
  const auto p = forward_parameters<float>(args);
  dispatch_columns(p.sizes.d, [&](auto columns) {
    constexpr int kColumns = decltype(columns)::value;
    launch(plain_forward<kColumns>, plain_blocks(p.sizes, p.sizes.heads), kPlainThreads, 0, context,
           p);
  });
}

void launch_plain_backward(const AttentionBackward& args, const Context& context) {
  const auto p = backward_parameters<float>(args, context);
  dispatch_columns(p.sizes.d, [&](auto columns) {
    constexpr int kColumns = decltype(columns)::value;
    launch(plain_query_gradient<kColumns>, plain_blocks(p.sizes, p.sizes.heads), kPlainThreads, 0,
           context, p);
    launch(plain_key_gradient<kColumns>, plain_blocks(p.sizes, p.sizes.kv_heads), kPlainThreads, 0,
           context, p);
  });
}

}  // namespace trireme::kernels::cuda
