#include "kernels/attention.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/host/blas.hpp"
#include "kernels/host/compute.hpp"
#include "kernels/preconditions.hpp"

// s queries, b samples, d head dimension. A task is one head of one sample; it walks over blocks of
// query rows, whose GEMMs with all keys that they attend to are small BLAS calls directly on the
// strided activations. With the causal mask, key blocks wholly above the diagonal are never
// touched.
namespace trireme::kernels::host {
namespace {

constexpr std::int64_t kQueryBlock = 64;

// A matrix of one head: row t starts at data + t * stride.
template <typename T>
struct Strided {
  T* data;
  std::int64_t stride;

  T* row(std::int64_t t) const { return data + t * stride; }
};

// The mask of one head of one sample, as factors of probabilities.
class HeadDropout {
 public:
  // Of head `head` of all, of sample j.
  HeadDropout(const Dropout& dropout, std::int64_t j, std::int64_t head, std::int64_t s)
      : mask_{.stream = stream_of(dropout, j),
              .threshold = attention_threshold(dropout.probability)},
        head_(static_cast<std::uint64_t>(head)),
        s_(static_cast<std::uint64_t>(s)) {}

  // Factors of keys 0 .. count - 1 for `query`.
  template <typename T>
  void draw(std::int64_t query, std::int64_t count, T* factors) const {
    draw_factors<8>(
        mask_, (head_ * s_ + static_cast<std::uint64_t>(query)) * s_, count,
        static_cast<T>(attention_kept(mask_.threshold)),
        [threshold = mask_.threshold](const std::uint32_t* words, std::int64_t i) {
          return AttentionMask::bits(words[i / 2], i) < threshold;
        },
        factors);
  }

 private:
  AttentionMask mask_;
  std::uint64_t head_, s_;
};

// Where heads of sample j lie in qkv [s, b, (heads + 2 kv_heads) * d].
template <typename T>
struct HeadLayout {
  std::int64_t s, b, heads, kv_heads, d;

  // Query heads that read one key and value head.
  std::int64_t group() const { return heads / kv_heads; }
  // Query head i.
  Strided<T> query(T* qkv, std::int64_t j, std::int64_t i) const { return at(qkv, j, i); }
  // Key head i.
  Strided<T> key(T* qkv, std::int64_t j, std::int64_t i) const { return at(qkv, j, heads + i); }
  // Value head i.
  Strided<T> value(T* qkv, std::int64_t j, std::int64_t i) const {
    return at(qkv, j, heads + kv_heads + i);
  }
  Strided<T> merged(T* out, std::int64_t j, std::int64_t i) const {
    return {out + (j * heads + i) * d, b * heads * d};
  }

 private:
  Strided<T> at(T* qkv, std::int64_t j, std::int64_t i) const {
    const std::int64_t columns = (heads + 2 * kv_heads) * d;
    return {qkv + j * columns + i * d, b * columns};
  }
};

// Scores of `count` queries against the first `keys` keys: scores [count, keys] = q k^T / sqrt(d).
template <typename T>
void score(Strided<const T> q, Strided<const T> k, std::int64_t count, std::int64_t keys,
           std::int64_t d, T* scores) {
  const T scale = static_cast<T>(1.0 / std::sqrt(static_cast<double>(d)));
  blas_gemm(false, true, count, keys, d, scale, q.data, q.stride, k.data, k.stride, T{0}, scores,
            keys);
}

// The keys [begin, end) that a query attends to.
struct KeyRange {
  std::int64_t begin, end;
  std::int64_t size() const { return end - begin; }
};

// Zeros in the `keys` elements of a row outside the range.
template <typename T>
void clear_outside(const KeyRange& range, std::int64_t keys, T* row) {
  std::fill(row, row + range.begin, T{0});
  std::fill(row + range.end, row + keys, T{0});
}

// Replaces `valid` scores by their softmax; returns the log-sum-exp.
template <typename T>
double softmax_row(T* row, std::int64_t valid) {
  const T largest = largest_of(row, valid);
#pragma omp simd
  for (std::int64_t i = 0; i < valid; ++i) row[i] = exponential(row[i] - largest);
  const double sum = sum_of(valid, [&](std::int64_t i) { return row[i]; });
  const T factor = static_cast<T>(1.0 / sum);
#pragma omp simd
  for (std::int64_t i = 0; i < valid; ++i) row[i] *= factor;
  return static_cast<double>(largest) + std::log(sum);
}

struct ForwardScratch;
struct BackwardScratch;

// Attention of `queries` rows, the first of which follows `past` keys, to those keys and the rows'
// own: up to the row's when `causal`, and from first_keys[row] on if that is given. `lse` and
// `dropout` may be null.
template <typename T>
void attend(Strided<const T> q, Strided<const T> k, Strided<const T> v, Strided<T> out,
            std::int64_t queries, std::int64_t past, std::int64_t d, bool causal,
            const std::int32_t* first_keys, T* lse, const HeadDropout* dropout) {
  const std::int64_t all_keys = past + queries;
  T* scores = scratch<T, ForwardScratch>((kQueryBlock + 1) * all_keys);
  T* factors = scores + kQueryBlock * all_keys;
  for (std::int64_t begin = 0; begin < queries; begin += kQueryBlock) {
    const std::int64_t count = std::min(kQueryBlock, queries - begin);
    const std::int64_t keys = causal ? past + begin + count : all_keys;
    score({q.row(begin), q.stride}, k, count, keys, d, scores);
    for (std::int64_t r = 0; r < count; ++r) {
      T* row = scores + r * keys;
      const KeyRange range{first_keys ? first_keys[begin + r] : 0,
                           causal ? past + begin + r + 1 : all_keys};
      const double row_lse = softmax_row(row + range.begin, range.size());
      clear_outside(range, keys, row);
      if (lse != nullptr) lse[begin + r] = static_cast<T>(row_lse);
      if (dropout != nullptr) {
        dropout->draw(begin + r, range.end, factors);
#pragma omp simd
        for (std::int64_t i = range.begin; i < range.end; ++i) row[i] *= factors[i];
      }
    }
    blas_gemm(false, false, count, d, keys, T{1}, scores, keys, v.data, v.stride, T{0},
              out.row(begin), out.stride);
  }
}

// The matrices of one head in the backward pass.
template <typename T>
struct HeadGradient {
  Strided<const T> q, k, v, out, dout;
  Strided<T> dq, dk, dv;
  const T* lse;
  std::int64_t s, d;  // s: without padding
  bool causal;
  const std::int32_t* first_keys;  // of each query; may be null

  KeyRange keys_of(std::int64_t query) const {
    return {first_keys ? first_keys[query] : 0, causal ? query + 1 : s};
  }
};

// For one query: turns its scores into probabilities times dropout (in `p`) and the gradient of the
// probabilities (in `dp`) into that of the scores. `factors` holds the dropout factors or is null.
template <typename T>
void backward_row(const HeadGradient<T>& head, std::int64_t query, std::int64_t keys,
                  const T* factors, T* p, T* dp) {
  const KeyRange range = head.keys_of(query);
  const T* out = head.out.row(query);
  const T* dout = head.dout.row(query);
  const T lse = head.lse[query];
  // sum over keys of p dp, by way of the output.
  const auto delta = static_cast<T>(
      sum_of(head.d, [&](std::int64_t i) { return static_cast<double>(out[i]) * dout[i]; }));
  if (factors != nullptr) {
#pragma omp simd
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      const T probability = exponential(p[i] - lse);
      dp[i] = probability * (dp[i] * factors[i] - delta);
      p[i] = probability * factors[i];
    }
  } else {
#pragma omp simd
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      const T probability = exponential(p[i] - lse);
      dp[i] = probability * (dp[i] - delta);
      p[i] = probability;
    }
  }
  clear_outside(range, keys, p);
  clear_outside(range, keys, dp);
}

// Writes dq; writes dk and dv, or with `adds` adds to them.
template <typename T>
void backward_head(const HeadGradient<T>& head, const HeadDropout* dropout, bool adds) {
  const std::int64_t s = head.s, d = head.d;
  const T scale = static_cast<T>(1.0 / std::sqrt(static_cast<double>(d)));
  T* p = scratch<T, BackwardScratch>((2 * kQueryBlock + 1) * s);
  T* dp = p + kQueryBlock * s;
  T* factors = dropout != nullptr ? dp + kQueryBlock * s : nullptr;
  // The last block first: it always reaches every key, so it writes dk and dv and the others add.
  T beta = adds ? 1 : 0;
  for (std::int64_t begin = (s - 1) / kQueryBlock * kQueryBlock; begin >= 0; begin -= kQueryBlock) {
    const std::int64_t count = std::min(kQueryBlock, s - begin);
    const std::int64_t keys = head.keys_of(begin + count - 1).end;
    const T* q = head.q.row(begin);
    const T* dout = head.dout.row(begin);
    score<T>({q, head.q.stride}, head.k, count, keys, d, p);
    blas_gemm(false, true, count, keys, d, T{1}, dout, head.dout.stride, head.v.data, head.v.stride,
              T{0}, dp, keys);
    for (std::int64_t r = 0; r < count; ++r) {
      if (dropout != nullptr) dropout->draw(begin + r, head.keys_of(begin + r).end, factors);
      backward_row<T>(head, begin + r, keys, factors, p + r * keys, dp + r * keys);
    }
    blas_gemm(false, false, count, d, keys, scale, dp, keys, head.k.data, head.k.stride, T{0},
              head.dq.row(begin), head.dq.stride);
    blas_gemm(true, false, keys, d, count, scale, dp, keys, q, head.q.stride, beta, head.dk.data,
              head.dk.stride);
    blas_gemm(true, false, keys, d, count, T{1}, p, keys, dout, head.dout.stride, beta,
              head.dv.data, head.dv.stride);
    beta = 1;
  }
}

// The layout of the heads in args.qkv.
template <typename T, typename Args>
HeadLayout<T> layout_of(const Args& args) {
  const Shape& shape = args.qkv.shape;
  const std::int64_t kv_heads = args.kv_heads > 0 ? args.kv_heads : args.heads;
  return {shape[0], shape[1], args.heads, kv_heads, shape[2] / (args.heads + 2 * kv_heads)};
}

template <typename Args>
void check_qkv(const char* op, const Args& args) {
  const Tensor& qkv = args.qkv;
  const std::int64_t heads = args.heads, kv_heads = args.kv_heads > 0 ? args.kv_heads : heads;
  TRIREME_CHECK(heads > 0 && heads % kv_heads == 0, "{}: {} heads for {} key and value heads", op,
                heads, kv_heads);
  TRIREME_CHECK(
      qkv.shape.rank() == 3 && qkv.shape[2] > 0 && qkv.shape[2] % (heads + 2 * kv_heads) == 0,
      "{}: qkv is {}, expected [s, b, (heads + 2 kv_heads) * d] with {} and {} heads", op,
      to_string(qkv.shape), heads, kv_heads);
  check_shape(op, "qkv", qkv, qkv.dtype, qkv.shape);
  const std::int64_t d = qkv.shape[2] / (heads + 2 * kv_heads);
  check_shape(op, "out", args.out, qkv.dtype, {qkv.shape[0], qkv.shape[1], heads * d});
}

// The tokens of sample j that are not padding.
std::int64_t length_of(const std::int32_t* lengths, std::int64_t j, std::int64_t s) {
  return lengths ? lengths[j] : s;
}

// Zeros in rows [begin, end) of a matrix of `d` columns.
template <typename T>
void clear_rows(Strided<T> matrix, std::int64_t begin, std::int64_t end, std::int64_t d) {
  for (std::int64_t t = begin; t < end; ++t) std::fill_n(matrix.row(t), d, T{0});
}

// The part of document_start [b, s] that belongs to sample j.
const std::int32_t* first_keys_of(const std::int32_t* document_start, std::int64_t j,
                                  std::int64_t s) {
  return document_start ? document_start + j * s : nullptr;
}

void check_lse(const char* op, const Tensor& lse, const Tensor& qkv, std::int64_t heads) {
  check_shape(op, "lse", lse, accumulation_type(qkv.dtype), {qkv.shape[1], heads, qkv.shape[0]});
}

template <typename T>
void forward(const AttentionForward& args) {
  const auto layout = layout_of<const T>(args);
  const auto out_layout = layout_of<T>(args);
  const T* qkv = args.qkv.as<T>();
  parallel_for(layout.b * layout.heads, [&](std::int64_t task) {
    const std::int64_t j = task / layout.heads, i = task % layout.heads;
    const std::int64_t kv = i / layout.group();
    const HeadDropout dropout(args.dropout, j, args.first_head + i, layout.s);
    const std::int64_t length = length_of(args.lengths, j, layout.s);
    const Strided<T> out = out_layout.merged(args.out.as<T>(), j, i);
    T* lse = args.lse.as<T>() + task * layout.s;
    attend<T>(layout.query(qkv, j, i), layout.key(qkv, j, kv), layout.value(qkv, j, kv), out,
              length, 0, layout.d, args.causal, first_keys_of(args.document_start, j, layout.s),
              lse, args.dropout.probability > 0.0 ? &dropout : nullptr);
    clear_rows(out, length, layout.s, layout.d);
    std::fill(lse + length, lse + layout.s, T{0});
  });
}

template <typename T>
void backward(const AttentionBackward& args) {
  const auto in = layout_of<const T>(args);
  const auto gradient = layout_of<T>(args);
  const T* qkv = args.qkv.as<T>();
  T* dqkv = args.dqkv.as<T>();
  // A task is a key and value head, whose query heads add to its gradients one after the other.
  parallel_for(in.b * in.kv_heads, [&](std::int64_t task) {
    const std::int64_t j = task / in.kv_heads, kv = task % in.kv_heads;
    const std::int64_t length = length_of(args.lengths, j, in.s);
    const Strided<T> dk = gradient.key(dqkv, j, kv), dv = gradient.value(dqkv, j, kv);
    for (std::int64_t i = kv * in.group(); i < (kv + 1) * in.group(); ++i) {
      const HeadDropout dropout(args.dropout, j, args.first_head + i, in.s);
      const HeadGradient<T> head{.q = in.query(qkv, j, i),
                                 .k = in.key(qkv, j, kv),
                                 .v = in.value(qkv, j, kv),
                                 .out = in.merged(args.out.as<T>(), j, i),
                                 .dout = in.merged(args.dout.as<T>(), j, i),
                                 .dq = gradient.query(dqkv, j, i),
                                 .dk = dk,
                                 .dv = dv,
                                 .lse = args.lse.as<T>() + (j * in.heads + i) * in.s,
                                 .s = length,
                                 .d = in.d,
                                 .causal = args.causal,
                                 .first_keys = first_keys_of(args.document_start, j, in.s)};
      if (length > 0)
        backward_head(head, args.dropout.probability > 0.0 ? &dropout : nullptr,
                      /*adds=*/i > kv * in.group());
      clear_rows(head.dq, length, in.s, in.d);
    }
    for (const Strided<T>& part : {dk, dv}) clear_rows(part, length, in.s, in.d);
  });
}

}  // namespace

void attention_forward(const AttentionForward& args) {
  const char* op = "attention_forward";
  const DType dtype = args.qkv.dtype;
  check_qkv(op, args);
  check_lse(op, args.lse, args.qkv, args.heads);
  check_dropout(op, args.dropout);
  using Args = AttentionForward;
  compute(args, dtype, {&Args::qkv}, {&Args::out},
          [](const Args& a, auto zero) { forward<decltype(zero)>(a); });
  raise_amax(args.out);
}

void attention_backward(const AttentionBackward& args) {
  const char* op = "attention_backward";
  const DType dtype = args.qkv.dtype;
  check_qkv(op, args);
  check_shape(op, "dout", args.dout, dtype, args.out.shape);
  check_shape(op, "dqkv", args.dqkv, dtype, args.qkv.shape);
  check_lse(op, args.lse, args.qkv, args.heads);
  check_dropout(op, args.dropout);
  using Args = AttentionBackward;
  compute(args, dtype, {&Args::dout, &Args::qkv, &Args::out}, {&Args::dqkv},
          [](const Args& a, auto zero) { backward<decltype(zero)>(a); });
}

}  // namespace trireme::kernels::host
