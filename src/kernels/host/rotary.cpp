#include "kernels/attention.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/host/compute.hpp"
#include "kernels/preconditions.hpp"

namespace trireme::kernels::host {
namespace {

// The heads of queries and keys in a row of qkv [s, b, (heads + 2 kv_heads) * d].
struct QkLayout {
  std::int64_t rows, heads, kv_heads, d;

  std::int64_t columns() const { return (heads + 2 * kv_heads) * d; }
  std::int64_t q_width() const { return heads * d; }
  std::int64_t k_width() const { return kv_heads * d; }
  std::int64_t qk_width() const { return q_width() + k_width(); }
  // Part 0 is q, part 1 is k.
  std::int64_t begin(int part) const { return part == 0 ? 0 : q_width(); }
  std::int64_t width(int part) const { return part == 0 ? q_width() : k_width(); }
};

QkLayout layout_of(const char* op, const Tensor& qkv, std::int64_t heads, std::int64_t kv_heads) {
  const std::int64_t all = heads + 2 * kv_heads;
  TRIREME_CHECK(heads > 0 && kv_heads > 0 && qkv.shape.rank() == 3 && qkv.shape[2] > 0 &&
                    qkv.shape[2] % all == 0,
                "{}: qkv is {}, expected [s, b, (heads + 2 kv_heads) * d] with {} and {} heads", op,
                to_string(qkv.shape), heads, kv_heads);
  check_shape(op, "qkv", qkv, qkv.dtype, qkv.shape);
  return {qkv.shape[0] * qkv.shape[1], heads, kv_heads, qkv.shape[2] / all};
}

template <typename T>
void rotate(const Rotary& args, const QkLayout& layout) {
  const std::int64_t b = args.qkv.shape[1], d = layout.d, half = d / 2;
  const T sign = args.inverse ? T{-1} : T{1};
  parallel_for(layout.rows, [&](std::int64_t t) {
    const std::int64_t position = args.positions ? args.positions[t] : args.first_position + t / b;
    const T* cosines = args.table.as<T>() + position * d;
    const T* sines = cosines + half;
    T* row = args.qkv.as<T>() + t * layout.columns();
    for (std::int64_t head = 0; head < layout.heads + layout.kv_heads; ++head) {
      T* low = row + head * d;
      T* high = low + half;
#pragma omp simd
      for (std::int64_t i = 0; i < half; ++i) {
        const T x = low[i], y = high[i], sine = sign * sines[i];
        low[i] = x * cosines[i] - y * sine;
        high[i] = y * cosines[i] + x * sine;
      }
    }
  });
}

// What a norm of each head (width 0) or of all heads together normalizes as one: `groups` of
// `size` elements in each part of a token.
struct Groups {
  bool whole;
  QkLayout layout;

  std::int64_t count(int part) const {
    return whole ? 1 : part == 0 ? layout.heads : layout.kv_heads;
  }
  std::int64_t size(int part) const { return whole ? layout.width(part) : layout.d; }
  std::int64_t statistics() const { return count(0) + count(1); }
  // Elements over which a mean goes, of all tensor ranks.
  double mean_size(int part, std::int64_t width) const {
    if (!whole) return static_cast<double>(layout.d);
    return static_cast<double>(width) * layout.width(part) / layout.q_width();
  }
};

template <typename T>
void normalize(const QkNormForward& args, const Groups& groups) {
  const QkLayout& layout = groups.layout;
  parallel_for(layout.rows, [&](std::int64_t t) {
    T* row = args.qkv.as<T>() + t * layout.columns();
    std::copy_n(row, layout.qk_width(), args.kept.as<T>() + t * layout.qk_width());
    T* rstd = args.rstd.as<T>() + t * groups.statistics();
    for (int part = 0; part < 2; ++part) {
      const T* weight = (part == 0 ? args.q_weight : args.k_weight).as<T>();
      const std::int64_t size = groups.size(part);
      for (std::int64_t group = 0; group < groups.count(part); ++group) {
        T* x = row + layout.begin(part) + group * size;
        const double squares =
            groups.whole
                ? static_cast<double>(args.sums.as<T>()[2 * t + part])
                : sum_of(size, [&](std::int64_t i) { return static_cast<double>(x[i]) * x[i]; });
        const double mean = squares / groups.mean_size(part, args.width);
        const T scale = static_cast<T>(1.0 / std::sqrt(mean + args.eps));
        *rstd++ = scale;
#pragma omp simd
        for (std::int64_t i = 0; i < size; ++i) x[i] = x[i] * scale * weight[i];
      }
    }
  });
}

// Adds dweight of one part before dy is overwritten.
template <typename T>
void add_weight_gradient(const QkNormBackward& args, const Groups& groups, int part) {
  const QkLayout& layout = groups.layout;
  const std::int64_t size = groups.size(part), count = groups.count(part);
  const std::int64_t first_group = part == 0 ? 0 : groups.count(0);
  const T* dy = args.dqkv.as<T>();
  const T* x = args.kept.as<T>();
  const T* rstd = args.rstd.as<T>();
  Tensor gradient = part == 0 ? args.dq_weight : args.dk_weight;
  add_column_sums(layout.rows * count, size, gradient.as<T>(),
                  [&](std::int64_t row, std::int64_t i) {
                    const std::int64_t t = row / count, group = row % count;
                    const std::int64_t column = layout.begin(part) + group * size + i;
                    return dy[t * layout.columns() + column] *
                           (x[t * layout.qk_width() + column] *
                            rstd[t * groups.statistics() + first_group + group]);
                  });
}

template <typename T>
void normalize_gradient(const QkNormBackward& args, const Groups& groups) {
  const QkLayout& layout = groups.layout;
  for (const int part : {0, 1}) add_weight_gradient<T>(args, groups, part);
  parallel_for(layout.rows, [&](std::int64_t t) {
    const T* rstd = args.rstd.as<T>() + t * groups.statistics();
    for (int part = 0; part < 2; ++part) {
      const T* weight = (part == 0 ? args.q_weight : args.k_weight).as<T>();
      const std::int64_t size = groups.size(part);
      for (std::int64_t group = 0; group < groups.count(part); ++group) {
        const std::int64_t column = layout.begin(part) + group * size;
        T* dy = args.dqkv.as<T>() + t * layout.columns() + column;
        const T* x = args.kept.as<T>() + t * layout.qk_width() + column;
        const T scale = *rstd++;
        const double sum = groups.whole
                               ? static_cast<double>(args.sums.as<T>()[2 * t + part])
                               : sum_of(size, [&](std::int64_t i) {
                                   return static_cast<double>(dy[i]) * weight[i] * (x[i] * scale);
                                 });
        const T mean = static_cast<T>(sum / groups.mean_size(part, args.width));
#pragma omp simd
        for (std::int64_t i = 0; i < size; ++i)
          dy[i] = scale * (dy[i] * weight[i] - x[i] * scale * mean);
      }
    }
  });
}

template <typename T>
void add_up(const QkNormSums& args, const QkLayout& layout) {
  parallel_for(layout.rows, [&](std::int64_t t) {
    for (int part = 0; part < 2; ++part) {
      const T* x = args.qkv.as<T>() + t * layout.columns() + layout.begin(part);
      T& sum = args.sums.as<T>()[2 * t + part];
      if (!args.kept) {
        sum = static_cast<T>(sum_of(
            layout.width(part), [&](std::int64_t i) { return static_cast<double>(x[i]) * x[i]; }));
        continue;
      }
      const T* kept = args.kept.as<T>() + t * layout.qk_width() + layout.begin(part);
      const T* weight = (part == 0 ? args.q_weight : args.k_weight).as<T>();
      const T scale = args.rstd.as<T>()[2 * t + part];
      sum = static_cast<T>(sum_of(layout.width(part), [&](std::int64_t i) {
        return static_cast<double>(x[i]) * weight[i] * (kept[i] * scale);
      }));
    }
  });
}

template <typename Args>
Groups check_norm(const char* op, const Args& args, const Tensor& qkv) {
  const QkLayout layout = layout_of(op, qkv, args.heads, args.kv_heads);
  const Groups groups{args.width > 0, layout};
  const DType dtype = qkv.dtype, statistics = accumulation_type(dtype);
  check_vector(op, "kept", args.kept, dtype, layout.rows * layout.qk_width());
  check_vector(op, "q_weight", args.q_weight, dtype, groups.size(0));
  check_vector(op, "k_weight", args.k_weight, dtype, groups.size(1));
  check_vector(op, "rstd", args.rstd, statistics, layout.rows * groups.statistics());
  if (groups.whole) {
    check_vector(op, "sums", args.sums, statistics, layout.rows * 2);
    TRIREME_CHECK(args.width % layout.q_width() == 0, "{}: a width of {} over shards of {}", op,
                  args.width, layout.q_width());
  }
  return groups;
}

}  // namespace

void rotary(const Rotary& args) {
  const char* op = "rotary";
  const DType dtype = args.qkv.dtype;
  const QkLayout layout = layout_of(op, args.qkv, args.heads, args.kv_heads);
  TRIREME_CHECK(layout.d % 2 == 0, "{}: heads of {} have no pairs", op, layout.d);
  const auto [positions, columns] = extents_of(op, "table", args.table);
  check_matrix(op, "table", args.table, accumulation_type(dtype), {positions, layout.d});
  TRIREME_CHECK(args.positions || (args.first_position >= 0 &&
                                   args.first_position + args.qkv.shape[0] <= positions),
                "{}: positions {} to {} of a table of {}", op, args.first_position,
                args.first_position + args.qkv.shape[0], positions);
  using Args = Rotary;
  compute(args, dtype, {&Args::qkv}, {&Args::qkv},
          [&](const Args& a, auto zero) { rotate<decltype(zero)>(a, layout); });
}

void qk_norm_sums(const QkNormSums& args) {
  const char* op = "qk_norm_sums";
  const DType dtype = args.qkv.dtype, statistics = accumulation_type(dtype);
  const QkLayout layout = layout_of(op, args.qkv, args.heads, args.kv_heads);
  check_vector(op, "sums", args.sums, statistics, layout.rows * 2);
  if (args.kept) {
    check_vector(op, "kept", args.kept, dtype, layout.rows * layout.qk_width());
    check_vector(op, "q_weight", args.q_weight, dtype, layout.q_width());
    check_vector(op, "k_weight", args.k_weight, dtype, layout.k_width());
    check_vector(op, "rstd", args.rstd, statistics, layout.rows * 2);
  }
  using Args = QkNormSums;
  compute(args, dtype, {&Args::qkv, &Args::kept, &Args::q_weight, &Args::k_weight}, {},
          [&](const Args& a, auto zero) { add_up<decltype(zero)>(a, layout); });
}

void qk_norm_forward(const QkNormForward& args) {
  const Groups groups = check_norm("qk_norm_forward", args, args.qkv);
  using Args = QkNormForward;
  compute(args, args.qkv.dtype, {&Args::qkv, &Args::q_weight, &Args::k_weight},
          {&Args::qkv, &Args::kept},
          [&](const Args& a, auto zero) { normalize<decltype(zero)>(a, groups); });
}

void qk_norm_backward(const QkNormBackward& args) {
  const char* op = "qk_norm_backward";
  const Groups groups = check_norm(op, args, args.dqkv);
  const DType statistics = accumulation_type(args.dqkv.dtype);
  check_vector(op, "dq_weight", args.dq_weight, statistics, groups.size(0));
  check_vector(op, "dk_weight", args.dk_weight, statistics, groups.size(1));
  using Args = QkNormBackward;
  compute(args, args.dqkv.dtype, {&Args::dqkv, &Args::kept, &Args::q_weight, &Args::k_weight},
          {&Args::dqkv},
          [&](const Args& a, auto zero) { normalize_gradient<decltype(zero)>(a, groups); });
}

}  // namespace trireme::kernels::host
