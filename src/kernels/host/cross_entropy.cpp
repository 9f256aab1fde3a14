#include "kernels/cross_entropy.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/host/compute.hpp"
#include "kernels/host/math.hpp"
#include "kernels/preconditions.hpp"

namespace trireme::kernels::host {
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
