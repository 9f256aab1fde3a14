#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/host/compute.hpp"
#include "kernels/preconditions.hpp"
#include "kernels/vocabulary.hpp"

namespace trireme::kernels::host {
namespace {

void look_up(const EmbeddingForward& args, std::int64_t tokens, std::int64_t h) {
  const std::int64_t rows = args.table.shape[0];
  const std::size_t row_bytes = h * size_of(args.table.dtype);
  parallel_for(tokens, [&](std::int64_t t) {
    std::byte* out = static_cast<std::byte*>(args.out.data) + t * row_bytes;
    const std::int64_t row = args.ids[t] - args.first_row;
    if (row >= 0 && row < rows)
      std::memcpy(out, static_cast<const std::byte*>(args.table.data) + row * row_bytes, row_bytes);
    else
      std::memset(out, 0, row_bytes);
  });
}

template <typename T>
void add_gradient(const EmbeddingBackward& args, std::int64_t tokens, std::int64_t h) {
  const std::int64_t rows = args.dtable.shape[0];
  // A task owns columns, not tokens: two tokens with one id never meet in two threads.
  parallel_blocks(h, kColumnBlock, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int64_t row = args.ids[t] - args.first_row;
      if (row < 0 || row >= rows) continue;
      const T* dout = args.dout.as<T>() + t * h;
      T* dtable = args.dtable.as<T>() + row * h;
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) dtable[i] += dout[i];
    }
  });
}

template <typename T>
void add_position(const PositionDropout& args) {
  const std::int64_t b = args.x.shape[1], h = args.x.shape[2];
  const bool drops = args.dropout.probability > 0.0;
  parallel_for(args.x.shape[0] * b, [&](std::int64_t t) {
    T* x = args.x.as<T>() + t * h;
    const std::int64_t place = args.first_position + t / b;
    const T* position = args.position.as<T>() + (args.rows ? args.rows[t] : place) * h;
    if (drops) {
      const T* factors = draw_row<T>(args.dropout, place, t % b, h);
#pragma omp simd
      for (std::int64_t i = 0; i < h; ++i) x[i] = (x[i] + position[i]) * factors[i];
    } else {
#pragma omp simd
      for (std::int64_t i = 0; i < h; ++i) x[i] += position[i];
    }
  });
}

template <typename T>
void add_position_gradient(const PositionBackward& args) {
  const std::int64_t b = args.dout.shape[1], h = args.dout.shape[2];
  parallel_for(args.dout.shape[0], [&](std::int64_t i) {
    T* dposition = args.dposition.as<T>() + i * h;
    for (std::int64_t j = 0; j < b; ++j) {
      const T* dout = args.dout.as<T>() + (i * b + j) * h;
#pragma omp simd
      for (std::int64_t k = 0; k < h; ++k) dposition[k] += dout[k];
    }
  });
}

}  // namespace

void embedding_forward(const EmbeddingForward& args) {
  const char* op = "embedding_forward";
  const DType dtype = args.table.dtype;
  const auto [rows, h] = extents_of(op, "table", args.table);
  const std::int64_t tokens = args.out.size() / h;
  check_shape(op, "table", args.table, dtype, {rows, h});
  check_matrix(op, "out", args.out, dtype, {tokens, h});
  TRIREME_CHECK(args.ids != nullptr || tokens == 0, "{}: ids has no memory", op);
  look_up(args, tokens, h);
}

void embedding_backward(const EmbeddingBackward& args) {
  const char* op = "embedding_backward";
  const DType dtype = args.dout.dtype;
  const auto [rows, h] = extents_of(op, "dtable", args.dtable);
  const std::int64_t tokens = args.dout.size() / h;
  check_shape(op, "dtable", args.dtable, accumulation_type(dtype), {rows, h});
  check_matrix(op, "dout", args.dout, dtype, {tokens, h});
  TRIREME_CHECK(args.ids != nullptr || tokens == 0, "{}: ids has no memory", op);
  using Args = EmbeddingBackward;
  compute(args, dtype, {&Args::dout}, {}, [tokens, h = h](const Args& a, auto zero) {
    add_gradient<decltype(zero)>(a, tokens, h);
  });
}

void position_dropout(const PositionDropout& args) {
  const char* op = "position_dropout";
  const DType dtype = args.x.dtype;
  TRIREME_CHECK(args.x.shape.rank() == 3, "{}: x is {}, expected [s, b, h]", op,
                to_string(args.x.shape));
  const auto [positions, h] = extents_of(op, "position", args.position);
  check_shape(op, "x", args.x, dtype, {args.x.shape[0], args.x.shape[1], h});
  check_shape(op, "position", args.position, dtype, {positions, h});
  TRIREME_CHECK(
      args.rows || (args.first_position >= 0 && args.first_position + args.x.shape[0] <= positions),
      "{}: positions {} to {} of a table of {}", op, args.first_position,
      args.first_position + args.x.shape[0] - 1, positions);
  check_dropout(op, args.dropout);
  using Args = PositionDropout;
  compute(args, dtype, {&Args::x, &Args::position}, {&Args::x},
          [](const Args& a, auto zero) { add_position<decltype(zero)>(a); });
}

void position_backward(const PositionBackward& args) {
  const char* op = "position_backward";
  const DType dtype = args.dout.dtype;
  TRIREME_CHECK(args.dout.shape.rank() == 3, "{}: dout is {}, expected [s, b, h]", op,
                to_string(args.dout.shape));
  const auto [positions, h] = extents_of(op, "dposition", args.dposition);
  check_shape(op, "dout", args.dout, dtype, {args.dout.shape[0], args.dout.shape[1], h});
  check_shape(op, "dposition", args.dposition, accumulation_type(dtype), {positions, h});
  TRIREME_CHECK(args.dout.shape[0] <= positions, "{}: {} positions, but a table of {}", op,
                args.dout.shape[0], positions);
  using Args = PositionBackward;
  compute(args, dtype, {&Args::dout}, {},
          [](const Args& a, auto zero) { add_position_gradient<decltype(zero)>(a); });
}

// ---- cross entropy

namespace {

template <typename T>
void statistics(const CrossEntropyStatistics& args, std::int64_t rows, std::int64_t stride) {
  T* max = args.max.as<T>();
  T* sum = args.sum.as<T>();
  T* target = args.target.as<T>();
  parallel_for(rows, [&](std::int64_t t) {
    const T* logits = args.logits.as<T>() + t * stride;
    const T largest = largest_of(logits, args.columns);
    max[t] = largest;
    sum[t] = static_cast<T>(
        sum_of(args.columns, [&](std::int64_t i) { return exponential(logits[i] - largest); }));
    const std::int64_t column = args.labels[t] - args.first_column;
    const bool here = args.labels[t] >= 0 && column >= 0 && column < args.columns;
    target[t] = here ? logits[column] : T{0};
  });
}

template <typename T>
void add_losses(const CrossEntropyLoss& args) {
  const T* max = args.max.as<T>();
  const T* sum = args.sum.as<T>();
  const T* target = args.target.as<T>();
  double loss = 0.0;
  double largest = -std::numeric_limits<double>::infinity();
  for (std::int64_t t = 0; t < args.max.size(); ++t) {
    if (args.labels[t] < 0) continue;
    loss += std::log(static_cast<double>(sum[t])) + static_cast<double>(max[t]) -
            static_cast<double>(target[t]);
    largest = std::max(largest, static_cast<double>(max[t]));
  }
  *args.loss.as<double>() += loss;
  if (args.largest) *args.largest.as<double>() = std::max(*args.largest.as<double>(), largest);
}

template <typename T>
void logit_gradient(const CrossEntropyBackward& args, std::int64_t rows, std::int64_t stride) {
  const T* max = args.max.as<T>();
  const T* sum = args.sum.as<T>();
  parallel_for(rows, [&](std::int64_t t) {
    T* logits = args.logits.as<T>() + t * stride;
    const bool counts = args.labels[t] >= 0;
    const T largest = max[t];
    const double lse = std::log(static_cast<double>(sum[t])) + static_cast<double>(largest);
    const double of_both = args.scale * (1.0 + 2.0 * args.z_loss * lse);
    const T factor = static_cast<T>(of_both / static_cast<double>(sum[t]));
    const std::int64_t columns = counts ? args.columns : 0;
#pragma omp simd
    for (std::int64_t i = 0; i < columns; ++i)
      logits[i] = exponential(logits[i] - largest) * factor;
    std::fill(logits + columns, logits + stride, T{0});
    const std::int64_t column = args.labels[t] - args.first_column;
    if (counts && column >= 0 && column < args.columns)
      logits[column] -= static_cast<T>(args.scale);
  });
}

// Rows and stored columns of the logits, after checking that the shard's columns fit.
Extents check_logits(const char* op, const Tensor& logits, std::int64_t columns) {
  const Extents extents = extents_of(op, "logits", logits);
  check_matrix(op, "logits", logits, logits.dtype, extents);
  TRIREME_CHECK(columns >= 0 && columns <= extents.columns, "{}: {} columns of {} stored ones", op,
                columns, extents.columns);
  return extents;
}

void check_labels(const char* op, const std::int32_t* labels, std::int64_t rows) {
  TRIREME_CHECK(labels != nullptr || rows == 0, "{}: labels has no memory", op);
}

}  // namespace

void cross_entropy_statistics(const CrossEntropyStatistics& args) {
  const char* op = "cross_entropy_statistics";
  const DType dtype = args.logits.dtype;
  const auto [rows, stride] = check_logits(op, args.logits, args.columns);
  check_labels(op, args.labels, rows);
  check_vector(op, "max", args.max, accumulation_type(dtype), rows);
  check_vector(op, "sum", args.sum, accumulation_type(dtype), rows);
  check_vector(op, "target", args.target, accumulation_type(dtype), rows);
  using Args = CrossEntropyStatistics;
  compute(args, dtype, {&Args::logits}, {},
          [rows = rows, stride = stride](const Args& a, auto zero) {
            statistics<decltype(zero)>(a, rows, stride);
          });
}

void cross_entropy_rescale(const CrossEntropyRescale& args) {
  const char* op = "cross_entropy_rescale";
  const DType dtype = args.max.dtype;
  const std::int64_t rows = args.max.size();
  check_vector(op, "local_max", args.local_max, dtype, rows);
  check_vector(op, "max", args.max, dtype, rows);
  check_vector(op, "sum", args.sum, dtype, rows);
  dispatch(dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* local_max = args.local_max.as<T>();
    const T* max = args.max.as<T>();
    T* sum = args.sum.as<T>();
    // A shard without columns, or with -infinity alone, adds nothing.
    for (std::int64_t t = 0; t < rows; ++t)
      sum[t] = std::isinf(local_max[t]) && local_max[t] < 0
                   ? T{0}
                   : sum[t] * std::exp(local_max[t] - max[t]);
  });
}

void select_labels(const SelectLabels& args) {
  std::int64_t count = 0;
  for (std::int64_t t = 0; t < args.tokens; ++t) {
    args.places[t] = -1;
    if (args.labels[t] < 0) continue;
    TRIREME_CHECK(count < args.capacity, "select_labels: more than {} of {} tokens have labels",
                  args.capacity, args.tokens);
    args.places[t] = static_cast<std::int32_t>(count);
    args.rows[count] = static_cast<std::int32_t>(t);
    args.selected[count++] = args.labels[t];
  }
  std::fill(args.rows + count, args.rows + args.capacity, -1);
  std::fill(args.selected + count, args.selected + args.capacity, -1);
}

void cross_entropy_loss(const CrossEntropyLoss& args) {
  const char* op = "cross_entropy_loss";
  const DType dtype = args.max.dtype;
  const std::int64_t rows = args.max.size();
  check_labels(op, args.labels, rows);
  check_vector(op, "max", args.max, dtype, rows);
  check_vector(op, "sum", args.sum, dtype, rows);
  check_vector(op, "target", args.target, dtype, rows);
  check_vector(op, "loss", args.loss, DType::f64, 1);
  if (args.largest) check_vector(op, "largest", args.largest, DType::f64, 1);
  dispatch(dtype, [&](auto zero) { add_losses<decltype(zero)>(args); });
}

void cross_entropy_backward(const CrossEntropyBackward& args) {
  const char* op = "cross_entropy_backward";
  const DType dtype = args.logits.dtype;
  const auto [rows, stride] = check_logits(op, args.logits, args.columns);
  check_labels(op, args.labels, rows);
  check_vector(op, "max", args.max, accumulation_type(dtype), rows);
  check_vector(op, "sum", args.sum, accumulation_type(dtype), rows);
  using Args = CrossEntropyBackward;
  compute(args, dtype, {&Args::logits}, {&Args::logits},
          [rows = rows, stride = stride](const Args& a, auto zero) {
            logit_gradient<decltype(zero)>(a, rows, stride);
          });
}

void cross_entropy_statistics_backward(const CrossEntropyStatisticsBackward& args) {
  const CrossEntropyStatistics& statistics = args.statistics;
  cross_entropy_statistics(statistics);
  cross_entropy_backward({.logits = statistics.logits,
                          .first_column = statistics.first_column,
                          .columns = statistics.columns,
                          .labels = statistics.labels,
                          .max = statistics.max,
                          .sum = statistics.sum,
                          .scale = args.scale,
                          .z_loss = args.z_loss});
}

}  // namespace trireme::kernels::host
