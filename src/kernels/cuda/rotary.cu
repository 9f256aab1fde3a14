// Rotary positions, and norms of queries and keys, in place in qkv; bound by bytes.
#include "kernels/attention.hpp"

#include "kernels/cuda/common/elementwise.cuh"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/rotary.cuh"

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

// ---- norms of queries and keys

namespace {

constexpr int kThreads = 256;

/// Which statistics a norm uses: of each head, or, `whole`, of all heads of a part together, whose
/// sums over all tensor ranks are given.
struct QkStatistics {
  const float* sums;  // [rows, 2]; null: of each head
  float* rstd;        // [rows, heads + kv_heads], or [rows, 2]
  float sizes[2];     // elements over which the means of q and k go

  __device__ __host__ bool whole() const { return sums != nullptr; }
  __device__ std::int64_t place(const QkLayout& layout, std::int64_t row, int head) const {
    return whole() ? 2 * row + (head >= layout.heads) : row * layout.qk_heads() + head;
  }
};

/// A head for each group of `lanes` threads, of which each has kGroups groups of kWidth columns.
template <typename T_, int kWidth_>
struct HeadLanes {
  using T = T_;
  static constexpr int kWidth = kWidth_;
  /// Columns of the widest heads, 256, over the 32 lanes that those get.
  static constexpr int kGroups = 256 / 32 / kWidth > 0 ? 256 / 32 / kWidth : 1;

  int d, lanes;

  static int lanes_for(int d) {
    int lanes = 1;
    while (lanes < 32 && lanes * kWidth < d) lanes *= 2;
    return lanes;
  }
  __device__ int lane() const { return static_cast<int>(threadIdx.x) & (lanes - 1); }
  __device__ int column(int g) const { return (g * lanes + lane()) * kWidth; }
  __device__ bool has(int g) const { return column(g) < d; }
  __device__ float sum(float value) const {
    for (int distance = lanes / 2; distance > 0; distance /= 2)
      value += __shfl_xor_sync(~0u, value, distance);
    return value;
  }
};

template <typename H>
using HeadValues = Values<H::kWidth>[H::kGroups];

template <typename H>
__device__ __forceinline__ void load_head(HeadValues<H>& values, const typename H::T* from,
                                          const H& own) {
#pragma unroll
  for (int g = 0; g < H::kGroups; ++g)
    values[g] = own.has(g) ? widen(load<H::kWidth>(from + own.column(g))) : Values<H::kWidth>{};
}

template <typename H>
__device__ __forceinline__ void store_head(typename H::T* to, const HeadValues<H>& values,
                                           const H& own) {
#pragma unroll
  for (int g = 0; g < H::kGroups; ++g)
    if (own.has(g)) store(to + own.column(g), narrow<typename H::T>(values[g]));
}

template <typename H>
__global__ void __launch_bounds__(kThreads)
    normalize_heads(typename H::T* qkv, typename H::T* kept, const typename H::T* q_weight,
                    const typename H::T* k_weight, QkStatistics statistics, float eps,
                    QkLayout layout, H own) {
  const std::int64_t item = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) / own.lanes;
  const std::int64_t row = min(item / layout.qk_heads(), layout.rows - 1);
  const int head = static_cast<int>(item % layout.qk_heads());
  const bool counts = item < layout.rows * layout.qk_heads();  // lanes of a warp stay together
  const int part = head >= layout.heads, of_part = head - part * layout.heads;
  typename H::T* at = qkv + row * layout.columns() + head * layout.d;
  HeadValues<H> x, weight;
  load_head<H>(x, at, own);
  load_head<H>(weight,
               (part == 0 ? q_weight : k_weight) + (statistics.whole() ? of_part * layout.d : 0),
               own);
  float squares = 0.0f;
#pragma unroll
  for (int g = 0; g < H::kGroups; ++g)
#pragma unroll
    for (int i = 0; i < H::kWidth; ++i) squares += x[g][i] * x[g][i];
  squares = own.sum(squares);
  if (statistics.whole()) squares = statistics.sums[2 * row + part];
  const float rstd = __frsqrt_rn(squares / statistics.sizes[part] + eps);
  if (!counts) return;
  store_head<H>(kept + (row * layout.qk_heads() + head) * layout.d, x, own);
#pragma unroll
  for (int g = 0; g < H::kGroups; ++g)
#pragma unroll
    for (int i = 0; i < H::kWidth; ++i) x[g][i] *= rstd * weight[g][i];
  store_head<H>(at, x, own);
  if (own.lane() == 0 && (!statistics.whole() || of_part == 0))
    statistics.rstd[statistics.place(layout, row, head)] = rstd;
}

/// Block (chunk, head) works on that head of rows_per_chunk rows, in order, and leaves its sums of
/// dweight in partials: of q [chunks, heads, d], then of k [chunks, kv_heads, d].
template <typename H>
__global__ void __launch_bounds__(kThreads)
    head_gradients(typename H::T* dqkv, const typename H::T* kept, const typename H::T* q_weight,
                   const typename H::T* k_weight, QkStatistics statistics, QkLayout layout, H own,
                   std::int64_t rows_per_chunk, float* partials) {
  extern __shared__ float sums_of_members[];  // [kThreads / lanes, d]
  const int members = kThreads / own.lanes, member = static_cast<int>(threadIdx.x) / own.lanes;
  const int head = static_cast<int>(blockIdx.y);
  const int part = head >= layout.heads, of_part = head - part * layout.heads;
  const std::int64_t begin = std::int64_t{blockIdx.x} * rows_per_chunk;
  const std::int64_t end = min(layout.rows, begin + rows_per_chunk);
  HeadValues<H> weight, sums = {};
  load_head<H>(weight,
               (part == 0 ? q_weight : k_weight) + (statistics.whole() ? of_part * layout.d : 0),
               own);
  for (std::int64_t first = begin; first < end; first += members) {
    const bool counts = first + member < end;
    const std::int64_t row = counts ? first + member : begin;
    typename H::T* at = dqkv + row * layout.columns() + head * layout.d;
    HeadValues<H> dy, x;
    load_head<H>(dy, at, own);
    load_head<H>(x, kept + (row * layout.qk_heads() + head) * layout.d, own);
    const float rstd = statistics.rstd[statistics.place(layout, row, head)];
    float sum = 0.0f;
#pragma unroll
    for (int g = 0; g < H::kGroups; ++g)
#pragma unroll
      for (int i = 0; i < H::kWidth; ++i) {
        x[g][i] *= rstd;
        if (counts) sums[g][i] += dy[g][i] * x[g][i];
        dy[g][i] *= weight[g][i];
        sum += dy[g][i] * x[g][i];
      }
    sum = own.sum(sum);
    if (statistics.whole()) sum = statistics.sums[2 * row + part];
    const float mean = sum / statistics.sizes[part];
#pragma unroll
    for (int g = 0; g < H::kGroups; ++g)
#pragma unroll
      for (int i = 0; i < H::kWidth; ++i) dy[g][i] = rstd * (dy[g][i] - x[g][i] * mean);
    if (counts) store_head<H>(at, dy, own);
  }
#pragma unroll
  for (int g = 0; g < H::kGroups; ++g)
    if (own.has(g)) {
#pragma unroll
      for (int i = 0; i < H::kWidth; ++i)
        sums_of_members[member * layout.d + own.column(g) + i] = sums[g][i];
    }
  __syncthreads();
  partials += part == 0 ? 0 : std::int64_t{gridDim.x} * layout.heads * layout.d;
  partials += (std::int64_t{blockIdx.x} * layout.heads_of(part) + of_part) * layout.d;
  for (int column = threadIdx.x; column < layout.d; column += kThreads) {
    float sum = sums_of_members[column];
    for (int other = 1; other < members; ++other) sum += sums_of_members[other * layout.d + column];
    partials[column] = sum;
  }
}

/// A block for the q or k of a row: sums of squares, or, with `kept`, of dy * weight * kept * rstd.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    sum_parts(const T* qkv, const T* kept, const T* q_weight, const T* k_weight, const float* rstd,
              float* sums, QkLayout layout) {
  const std::int64_t row = blockIdx.x;
  const int part = static_cast<int>(blockIdx.y), first = part == 0 ? 0 : layout.heads * layout.d;
  const int width = layout.heads_of(part) * layout.d;
  const T* x = qkv + row * layout.columns() + first;
  const T* weight = part == 0 ? q_weight : k_weight;
  if (kept != nullptr) kept += row * layout.qk_heads() * layout.d + first;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < width; i += kThreads) {
    const float value = to_float(x[i]);
    sum += kept == nullptr ? value * value : value * to_float(weight[i]) * to_float(kept[i]);
  }
  const double all = block_sum<kThreads>(sum);
  if (threadIdx.x == 0)
    sums[2 * row + part] =
        static_cast<float>(all) * (kept == nullptr ? 1.0f : rstd[2 * row + part]);
}

/// The statistics of a norm of `args`, after checking its tensors.
template <typename Args>
QkStatistics check_norm(const char* op, const Args& args, const Tensor& qkv,
                        const QkLayout& layout) {
  const bool whole = args.width > 0;
  const std::int64_t q_width = std::int64_t{layout.heads} * layout.d;
  const std::int64_t k_width = std::int64_t{layout.kv_heads} * layout.d;
  TRIREME_CHECK(layout.d <= 256, "{}: heads of {}, at most 256 are possible", op, layout.d);
  TRIREME_CHECK(args.width % q_width == 0, "{}: a width of {} over shards of {}", op, args.width,
                q_width);
  check_vector(op, "kept", args.kept, qkv.dtype, layout.rows * (q_width + k_width));
  check_vector(op, "q_weight", args.q_weight, qkv.dtype, whole ? q_width : layout.d);
  check_vector(op, "k_weight", args.k_weight, qkv.dtype, whole ? k_width : layout.d);
  check_vector(op, "rstd", args.rstd, DType::f32, layout.rows * (whole ? 2 : layout.qk_heads()));
  if (whole) check_vector(op, "sums", args.sums, DType::f32, layout.rows * 2);
  const auto d = static_cast<float>(layout.d);
  const auto ranks = static_cast<float>(whole ? args.width / q_width : 1);
  return {.sums = whole ? args.sums.template as<float>() : nullptr,
          .rstd = args.rstd.template as<float>(),
          .sizes = {whole ? ranks * static_cast<float>(q_width) : d,
                    whole ? ranks * static_cast<float>(k_width) : d}};
}

/// Calls call(lanes) with the HeadLanes for heads of T that lie as `vectors` says.
template <typename T, typename Call>
void dispatch_lanes(const QkLayout& layout, bool vectors, const Call& call) {
  dispatch_width<T>(vectors, [&](auto width) {
    using H = HeadLanes<T, width>;
    call(H{layout.d, H::lanes_for(layout.d)});
  });
}

}  // namespace

void qk_norm_sums(const QkNormSums& args, const Context& context) {
  const char* op = "qk_norm_sums";
  const DType dtype = args.qkv.dtype;
  const QkLayout layout = layout_of(op, args.qkv, args.heads, args.kv_heads);
  check_vector(op, "sums", args.sums, DType::f32, layout.rows * 2);
  if (args.kept) {
    const std::int64_t d = layout.d;
    check_vector(op, "kept", args.kept, dtype, layout.rows * layout.qk_heads() * d);
    check_vector(op, "q_weight", args.q_weight, dtype, layout.heads * d);
    check_vector(op, "k_weight", args.k_weight, dtype, layout.kv_heads * d);
    check_vector(op, "rstd", args.rstd, DType::f32, layout.rows * 2);
  }
  if (layout.rows == 0) return;
  dispatch_cuda(dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool gradient = static_cast<bool>(args.kept);
    const dim3 grid(static_cast<unsigned>(layout.rows), 2);
    sum_parts<T><<<grid, kThreads, 0, context.stream>>>(
        args.qkv.as<T>(), gradient ? args.kept.as<T>() : nullptr,
        gradient ? args.q_weight.as<T>() : nullptr, gradient ? args.k_weight.as<T>() : nullptr,
        gradient ? args.rstd.as<float>() : nullptr, args.sums.as<float>(), layout);
    TRIREME_CUDA_LAUNCHED(sum_parts);
  });
}

void qk_norm_forward(const QkNormForward& args, const Context& context) {
  const char* op = "qk_norm_forward";
  const QkLayout layout = layout_of(op, args.qkv, args.heads, args.kv_heads);
  const QkStatistics statistics = check_norm(op, args, args.qkv, layout);
  if (layout.rows == 0) return;
  dispatch_cuda(args.qkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    T *qkv = args.qkv.as<T>(), *kept = args.kept.as<T>();
    const T *q_weight = args.q_weight.as<T>(), *k_weight = args.k_weight.as<T>();
    const bool vectors = rows_aligned16<T>(layout.d, qkv, kept, q_weight, k_weight);
    dispatch_lanes<T>(layout, vectors, [&](auto own) {
      const std::int64_t threads = layout.rows * layout.qk_heads() * own.lanes;
      normalize_heads<<<static_cast<unsigned>((threads + kThreads - 1) / kThreads), kThreads, 0,
                        context.stream>>>(qkv, kept, q_weight, k_weight, statistics,
                                          static_cast<float>(args.eps), layout, own);
      TRIREME_CUDA_LAUNCHED(normalize_heads);
    });
  });
}

void qk_norm_backward(const QkNormBackward& args, const Context& context) {
  const char* op = "qk_norm_backward";
  const QkLayout layout = layout_of(op, args.dqkv, args.heads, args.kv_heads);
  const QkStatistics statistics = check_norm(op, args, args.dqkv, layout);
  const bool whole = statistics.whole();
  const std::int64_t d = layout.d;
  check_vector(op, "dq_weight", args.dq_weight, DType::f32, whole ? layout.heads * d : d);
  check_vector(op, "dk_weight", args.dk_weight, DType::f32, whole ? layout.kv_heads * d : d);
  check_workspace(op, context, qk_norm_backward_workspace(layout.qk_heads(), d));
  if (layout.rows == 0) return;
  const std::int64_t most = std::max<std::int64_t>(1, kQkNormBlocks / layout.qk_heads());
  const std::int64_t rows_per_chunk = std::max<std::int64_t>(32, (layout.rows + most - 1) / most);
  const std::int64_t chunks = (layout.rows + rows_per_chunk - 1) / rows_per_chunk;
  auto* partials = reinterpret_cast<float*>(context.workspace);
  dispatch_cuda(args.dqkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    T *dqkv = args.dqkv.as<T>(), *kept = args.kept.as<T>();
    const T *q_weight = args.q_weight.as<T>(), *k_weight = args.k_weight.as<T>();
    const bool vectors = rows_aligned16<T>(d, dqkv, kept, q_weight, k_weight);
    dispatch_lanes<T>(layout, vectors, [&](auto own) {
      const dim3 grid(static_cast<unsigned>(chunks), static_cast<unsigned>(layout.qk_heads()));
      const std::size_t shared = sizeof(float) * static_cast<std::size_t>(kThreads / own.lanes * d);
      head_gradients<<<grid, kThreads, shared, context.stream>>>(
          dqkv, static_cast<const T*>(kept), q_weight, k_weight, statistics, layout, own,
          rows_per_chunk, partials);
      TRIREME_CUDA_LAUNCHED(head_gradients);
    });
  });
  for (const int part : {0, 1}) {
    const std::int64_t heads = layout.heads_of(part);
    auto* gradient = (part == 0 ? args.dq_weight : args.dk_weight).as<float>();
    add_partial_columns(partials, whole ? chunks : chunks * heads,
                        {.width = whole ? heads * d : d, .vectors = {gradient}}, context);
    partials += chunks * heads * d;
  }
}

}  // namespace trireme::kernels::cuda
