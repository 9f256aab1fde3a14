#include "kernels/decoding.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "kernels/host/compute.hpp"
#include "kernels/linear.hpp"
#include "kernels/preconditions.hpp"

namespace trireme::kernels {

CacheSizes cache_sizes(const char* op, const Tensor& qkv, const KeyValueCache& cache,
                       std::int64_t heads, std::int64_t kv_heads) {
  TRIREME_CHECK(cache.keys.shape.rank() == 3 && cache.keys.shape[0] == kv_heads,
                "{}: keys is {}, expected [{} heads, positions, d]", op,
                to_string(cache.keys.shape), kv_heads);
  TRIREME_CHECK(heads > 0 && kv_heads > 0 && heads % kv_heads == 0,
                "{}: {} heads cannot share {} heads of keys and values", op, heads, kv_heads);
  check_shape(op, "values", cache.values, qkv.dtype, cache.keys.shape);
  TRIREME_CHECK(cache.keys.dtype == qkv.dtype, "{}: keys is {}, expected {}", op,
                name_of(cache.keys.dtype), name_of(qkv.dtype));
  TRIREME_CHECK(cache.table && cache.columns > 0 && cache.stride >= cache.keys.size(),
                "{}: a cache without blocks", op);
  CacheSizes sizes{.rows = 0,
                   .heads = heads,
                   .kv_heads = kv_heads,
                   .head_dim = cache.keys.shape[2],
                   .positions = cache.keys.shape[1]};
  sizes.rows = qkv.size() / sizes.width();
  check_matrix(op, "qkv", qkv, qkv.dtype, {sizes.rows, sizes.width()});
  return sizes;
}

namespace host {
namespace {

/// The place of a position's row of one head in a cache tensor.
std::byte* place_of(const KeyValueCache& cache, const Tensor& tensor, const CacheSizes& sizes,
                    std::int32_t line, std::int64_t position, std::int64_t head) {
  const std::int64_t block = cache.table[line * cache.columns + position / sizes.positions];
  const std::int64_t element =
      block * cache.stride + (head * sizes.positions + position % sizes.positions) * sizes.head_dim;
  return static_cast<std::byte*>(tensor.data) + element * size_of(tensor.dtype);
}

void append_row(const Tensor& qkv, const KeyValueCache& cache, const CacheRows& rows,
                const CacheSizes& sizes, std::int64_t t) {
  const std::int32_t line = rows.lines[t];
  if (line < 0) return;
  const std::size_t bytes = sizes.head_dim * size_of(qkv.dtype);
  for (std::int64_t head = 0; head < sizes.kv_heads; ++head) {
    const auto* row = static_cast<const std::byte*>(qkv.data) +
                      (t * sizes.width()) * size_of(qkv.dtype) + (sizes.heads + head) * bytes;
    const std::int64_t position = rows.positions[t];
    std::copy_n(row, bytes, place_of(cache, cache.keys, sizes, line, position, head));
    std::copy_n(row + sizes.kv_heads * bytes, bytes,
                place_of(cache, cache.values, sizes, line, position, head));
  }
}

/// `count` elements of a type as T, the type in which the host computes on it.
template <typename T>
const T* read(const std::byte* elements, DType dtype, std::int64_t count, T* converted) {
  if (dtype == accumulation_type(dtype)) return reinterpret_cast<const T*>(elements);
  if constexpr (std::is_same_v<T, float>) convert_to_float(elements, count, dtype, converted);
  return converted;
}

struct QueryScratch;

/// One query head of row t.
template <typename T>
void attend(const AttentionPaged& args, const CacheSizes& sizes, std::int64_t t,
            std::int64_t head) {
  const std::int64_t d = sizes.head_dim, kv = head / (sizes.heads / sizes.kv_heads);
  const DType dtype = args.qkv.dtype;
  auto* out = static_cast<std::byte*>(args.out.data) +
              (t * sizes.heads + head) * d * static_cast<std::int64_t>(size_of(dtype));
  const std::int32_t line = args.rows.lines[t];
  if (line < 0) {
    std::fill_n(out, d * size_of(dtype), std::byte{0});
    return;
  }
  const std::int64_t seen = args.rows.positions[t] + 1;
  const std::int64_t count = args.window > 0 ? std::min(seen, args.window) : seen;
  const std::int64_t first = seen - count;
  T* query = scratch<T, QueryScratch>(3 * d + count);
  T* sum = query + d;
  T* converted = sum + d;
  T* scores = converted + d;
  const auto* q = static_cast<const std::byte*>(args.qkv.data) +
                  (t * sizes.width() + head * d) * static_cast<std::int64_t>(size_of(dtype));
  const T scale = static_cast<T>(1.0 / std::sqrt(static_cast<double>(d)));
  std::transform(read(q, dtype, d, converted), read(q, dtype, d, converted) + d, query,
                 [&](T x) { return x * scale; });
  for (std::int64_t i = 0; i < count; ++i) {
    const T* key = read(place_of(args.cache, args.cache.keys, sizes, line, first + i, kv), dtype, d,
                        converted);
    scores[i] = static_cast<T>(sum_of(d, [&](std::int64_t c) { return query[c] * key[c]; }));
  }
  const T largest = *std::max_element(scores, scores + count);
  for (std::int64_t i = 0; i < count; ++i) scores[i] = exponential(scores[i] - largest);
  const double total = sum_of(count, [&](std::int64_t i) { return scores[i]; });
  std::fill_n(sum, d, T{0});
  for (std::int64_t i = 0; i < count; ++i) {
    const T* value = read(place_of(args.cache, args.cache.values, sizes, line, first + i, kv),
                          dtype, d, converted);
#pragma omp simd
    for (std::int64_t c = 0; c < d; ++c) sum[c] += scores[i] * value[c];
  }
  for (std::int64_t c = 0; c < d; ++c) sum[c] = static_cast<T>(sum[c] / total);
  if (dtype == accumulation_type(dtype)) {
    std::copy_n(sum, d, reinterpret_cast<T*>(out));
  } else if constexpr (std::is_same_v<T, float>) {
    convert_from_float(sum, d, dtype, out);
  }
}

}  // namespace

void cache_append(const CacheAppend& args) {
  const CacheSizes sizes =
      cache_sizes("cache_append", args.qkv, args.cache, args.heads, args.kv_heads);
  parallel_for(sizes.rows,
               [&](std::int64_t t) { append_row(args.qkv, args.cache, args.rows, sizes, t); });
}

void attention_paged(const AttentionPaged& args) {
  const char* op = "attention_paged";
  const CacheSizes sizes = cache_sizes(op, args.qkv, args.cache, args.heads, args.kv_heads);
  check_matrix(op, "out", args.out, args.qkv.dtype, {sizes.rows, sizes.heads * sizes.head_dim});
  if (args.append) cache_append({args.qkv, args.cache, args.rows, args.heads, args.kv_heads});
  dispatch(accumulation_type(args.qkv.dtype), [&](auto zero) {
    parallel_for(sizes.rows * sizes.heads, [&](std::int64_t task) {
      attend<decltype(zero)>(args, sizes, task / sizes.heads, task % sizes.heads);
    });
  });
}

// ---- linear layers of a few rows

void decode_linear(const DecodeLinear& args) {
  const char* op = "decode_linear";
  const DType dtype = args.x.dtype;
  const Extents x = extents_of(op, "x", args.x);
  const std::int64_t n = extents_of(op, "y", args.y).columns, outputs = args.gated ? 2 * n : n;
  TRIREME_CHECK(x.rows <= kMaxDecodeRows, "{}: {} rows, at most {}", op, x.rows, kMaxDecodeRows);
  TRIREME_CHECK(!args.gated || (args.function && !args.bias && !args.residual),
                "{}: a gated layer has a function, and no bias and no residual", op);
  check_matrix(op, "weight", args.weight, dtype, {outputs, x.columns});
  check_matrix(op, "y", args.y, dtype, {x.rows, n});
  const DType statistics = accumulation_type(dtype);
  std::vector<std::byte> memory(size_of(DType::f64) *
                                (x.rows * (x.columns + 2 * outputs + n) + 2 * x.rows));
  std::byte* next = memory.data();
  const auto take = [&](DType type, Shape shape) {
    const Tensor tensor{next, type, shape};
    next += shape.size() * static_cast<std::int64_t>(size_of(DType::f64));
    return tensor;
  };
  Tensor input = args.x.view({x.rows, x.columns});
  if (args.norm.weight) {
    const Tensor normalized = take(dtype, {x.rows, x.columns});
    const bool layer = args.norm.kind == NormKind::layer;
    layernorm_forward({.x = input,
                       .weight = args.norm.weight,
                       .bias = args.norm.bias,
                       .out = normalized,
                       .mean = layer ? take(statistics, {x.rows}) : Tensor(),
                       .rstd = take(statistics, {x.rows}),
                       .eps = args.norm.eps,
                       .kind = args.norm.kind});
    input = normalized;
  }
  if (args.residual) check_matrix(op, "residual", args.residual, dtype, {x.rows, n});
  struct Operands {
    Tensor x, weight, bias, residual, y;
  };
  using O = Operands;
  compute(O{input, args.weight, args.bias, args.residual, args.y.view({x.rows, n})}, dtype,
          {&O::x, &O::weight, &O::bias, &O::residual}, {&O::y}, [&](const O& o, auto zero) {
            using T = decltype(zero);
            const bool last = !args.function && !o.residual;
            const Tensor linear_out = last ? o.y : take(statistics, {x.rows, outputs});
            gemm({.a = o.x, .b = o.weight, .c = linear_out, .transpose_b = true, .bias = o.bias});
            if (last) return;
            Tensor result = linear_out;
            if (args.function) {
              result = o.residual ? take(statistics, {x.rows, n}) : o.y;
              if (args.gated)
                gated_forward({.x = linear_out, .out = result, .function = *args.function});
              else
                gelu_forward({.x = linear_out, .out = result, .function = *args.function});
            }
            if (!o.residual) return;
            const T *a = o.residual.template as<T>(), *b = result.as<T>();
            std::transform(a, a + o.y.size(), b, o.y.template as<T>(), std::plus<T>());
          });
}

void top_logits(const TopLogits& args) {
  const char* op = "top_logits";
  const Extents logits = extents_of(op, "logits", args.logits);
  const std::int64_t count = extents_of(op, "values", args.values).columns;
  TRIREME_CHECK(count >= 1 && count <= std::min(args.columns, kMaxTopLogits) &&
                    args.columns <= logits.columns,
                "{}: {} of {} columns, at most {}", op, count, args.columns, kMaxTopLogits);
  check_matrix(op, "values", args.values, accumulation_type(args.logits.dtype),
               {logits.rows, count});
  using Args = TopLogits;
  compute(args, args.logits.dtype, {&Args::logits}, {}, [&](const Args& a, auto zero) {
    using T = decltype(zero);
    parallel_for(logits.rows, [&](std::int64_t t) {
      const T* row = a.logits.as<T>() + t * logits.columns;
      std::vector<std::int32_t> ids(a.columns);
      std::iota(ids.begin(), ids.end(), 0);
      const auto before = [&](std::int32_t i, std::int32_t j) {
        const bool nan_i = std::isnan(row[i]), nan_j = std::isnan(row[j]);
        if (nan_i != nan_j) return nan_i;
        return !nan_i && row[i] != row[j] ? row[i] > row[j] : i < j;
      };
      std::partial_sort(ids.begin(), ids.begin() + count, ids.end(), before);
      for (std::int64_t i = 0; i < count; ++i) {
        a.ids[t * count + i] = ids[i];
        a.values.as<T>()[t * count + i] = row[ids[i]];
      }
    });
  });
}

}  // namespace host
}  // namespace trireme::kernels
