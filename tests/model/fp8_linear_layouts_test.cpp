// A linear in FP8 on tensor ranks against a calculation in double that rounds the same operands by
// itself, as whole tensors or by their blocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "model/layers/linear.hpp"
#include "ranked_gpt.hpp"

namespace trireme::test {
namespace {

using Values = std::vector<double>;

/// A matrix [rows, columns].
struct Matrix {
  std::int64_t rows = 0, columns = 0;
  Values values = Values(rows * columns);

  double& at(std::int64_t row, std::int64_t column) { return values[row * columns + column]; }
  double at(std::int64_t row, std::int64_t column) const { return values[row * columns + column]; }
};

/// fp32 numbers that `stream` names, normal with magnitudes that differ by row and column.
Matrix invented(std::int64_t rows, std::int64_t columns, std::uint64_t stream) {
  Matrix m{rows, columns};
  for (std::int64_t i = 0; i < rows * columns; ++i)
    m.values[i] = static_cast<float>(philox_normal(11, stream, i) * (1 + i % columns % 7) *
                                     (1 + i / columns % 5));
  return m;
}

/// The nearest number with `digits` bits after the point from 2^minimum on, ties to even.
double rounded(double value, int digits, int minimum, double largest) {
  if (value == 0.0) return 0.0;
  const int exponent = std::max(std::ilogb(value), minimum);
  const double step = std::ldexp(1.0, exponent - digits);
  return std::clamp(std::nearbyint(value / step) * step, -largest, largest);
}

/// What FP8 makes of `x`, with a scale for each block of `height` x `width`: the factor's numerator
/// and denominator are fp32, as is the scale. `amax` of the whole tensor where it is one block.
Matrix quantized(const Matrix& x, bool gradient, std::int64_t height, std::int64_t width,
                 std::optional<double> amax = {}) {
  const double max = gradient ? 57344.0 : 448.0;
  Matrix result{x.rows, x.columns};
  for (std::int64_t top = 0; top < x.rows; top += height)
    for (std::int64_t left = 0; left < x.columns; left += width) {
      const std::int64_t bottom = std::min(x.rows, top + height),
                         right = std::min(x.columns, left + width);
      double largest = amax.value_or(0.0);
      for (std::int64_t row = top; row < bottom; ++row)
        for (std::int64_t column = left; column < right; ++column)
          largest = std::max(largest, std::abs(x.at(row, column)));
      const float factor = static_cast<float>(max) / static_cast<float>(largest);
      const float scale = 1.0f / factor;
      for (std::int64_t row = top; row < bottom; ++row)
        for (std::int64_t column = left; column < right; ++column) {
          const float scaled = static_cast<float>(x.at(row, column)) * factor;
          result.at(row, column) =
              (gradient ? rounded(scaled, 2, -14, max) : rounded(scaled, 3, -6, max)) * scale;
        }
    }
  return result;
}

/// a b^T, or with `transpose_a` a^T b, of matrices that are contiguous along the sum or not.
Matrix product(const Matrix& a, const Matrix& b, bool transpose_a) {
  if (transpose_a) {
    Matrix c{a.columns, b.columns};
    for (std::int64_t k = 0; k < a.rows; ++k)
      for (std::int64_t i = 0; i < a.columns; ++i)
        for (std::int64_t j = 0; j < b.columns; ++j) c.at(i, j) += a.at(k, i) * b.at(k, j);
    return c;
  }
  Matrix c{a.rows, b.rows};
  for (std::int64_t i = 0; i < a.rows; ++i)
    for (std::int64_t j = 0; j < b.rows; ++j)
      for (std::int64_t k = 0; k < a.columns; ++k) c.at(i, j) += a.at(i, k) * b.at(j, k);
  return c;
}

Matrix transposed(const Matrix& x) {
  Matrix result{x.columns, x.rows};
  for (std::int64_t row = 0; row < x.rows; ++row)
    for (std::int64_t column = 0; column < x.columns; ++column)
      result.at(column, row) = x.at(row, column);
  return result;
}

Matrix columns_of(const Matrix& x, const std::vector<std::int64_t>& columns) {
  Matrix result{x.rows, std::ssize(columns)};
  for (std::int64_t row = 0; row < x.rows; ++row)
    for (std::int64_t i = 0; i < result.columns; ++i) result.at(row, i) = x.at(row, columns[i]);
  return result;
}

void expect_near(const Tensor& found, const Matrix& wanted, const char* what) {
  const Values values = to_doubles(found);
  EXPECT_LT(distance(values, wanted.values), 1e-5 * norm(wanted.values)) << what;
}

/// A linear's operands on this rank, with the memory for what it makes of them.
struct Fp8Linear {
  static constexpr std::int64_t kTokens = 144;  // the last block of 128 is smaller

  std::unique_ptr<device::Backend> backend = device::make_host_backend(1);
  comm::Groups groups;
  model::LayerContext context;
  std::vector<device::Buffer> memory = {};
  model::Fp8Input kept = {};

  explicit Fp8Linear(int ranks)
      : groups(comm::make_groups(world(), {.tensor = ranks, .partition = {1}})),
        context({.sequence = kTokens, .tensor_ranks = ranks, .precision = fp8_precision()},
                *backend, *groups.tensor) {}

  Tensor tensor(Shape shape) {
    memory.push_back(backend->allocate(shape.size() * sizeof(float), "a test"));
    return {memory.back().get(), DType::f32, shape};
  }
  Tensor upload(const Matrix& values) {
    const Tensor result = tensor({values.rows, values.columns});
    assign(result, values.values);
    return result;
  }
  /// Binds the linear, with initial weights, and casts them.
  template <typename Linear>
  std::unique_ptr<model::ParameterStore> prepare(Linear& linear) {
    auto store = std::make_unique<model::ParameterStore>(*backend, table_of(linear), groups.layout,
                                                         groups.place, fp8_precision(),
                                                         model::StoreOptions{.gradients = true});
    store->initialize(/*seed=*/3);
    linear.bind(*store);
    const auto take = [&](const auto& use) {
      model::Arena count;
      use(count);
      memory.push_back(backend->allocate(count.bytes(), "a test"));
      model::Arena arena(memory.back().get());
      use(arena);
    };
    take([&](model::Arena& arena) {
      linear.take_fp8_weight(arena, context);
      kept = linear.take_input(arena, context);
      const model::Fp8Sizes sizes = linear.fp8_sizes(context);
      context.fp8 = {.operand = arena.take(DType::float8_e4m3, {sizes.elements}),
                     .transposed = arena.take(DType::float8_e5m2, {sizes.elements}),
                     .amax = arena.take(DType::f32, {1}),
                     .scales = arena.take(DType::f32, {sizes.scales}),
                     .transposed_scales = arena.take(DType::f32, {sizes.transposed_scales})};
    });
    EXPECT_TRUE(linear.in_fp8(context));
    linear.cast_weight(context);
    return store;
  }
  /// The whole weight.
  Matrix weight(const model::Linear& linear) {
    model::ParameterStore whole(*backend, table_of(linear), {.partition = {1}}, {},
                                fp8_precision());
    whole.initialize(/*seed=*/3);
    const Tensor w = whole["linear/weight"].weight;
    return {w.shape[0], w.shape[1], to_doubles(w)};
  }
  double largest(const Matrix& x) {
    double amax = 0.0;
    for (const double value : x.values) amax = std::max(amax, std::abs(value));
    return groups.tensor->all_reduce(amax, comm::Reduce::max);
  }

 private:
  static std::vector<model::Parameter> table_of(const model::Linear& linear) {
    model::ParameterTableBuilder table;
    table.at(model::StagePlacement::layer, 0);
    linear.declare(table);
    return table.take();
  }
};

/// The rows of `blocks` that the tensor rank `rank` of `ranks` has, and whether others have them.
struct LocalRows {
  std::vector<std::int64_t> rows;
  std::vector<bool> copied;

  LocalRows(const std::vector<model::RowBlock>& blocks, int ranks, int rank) {
    std::int64_t first = 0;
    for (const model::RowBlock& block : blocks) {
      const int copies = block.max_shards > 0 ? std::max(1, ranks / block.max_shards) : 1;
      const std::int64_t local = block.rows * copies / ranks;
      for (std::int64_t row = 0; row < local; ++row) {
        rows.push_back(first + rank / copies * local + row);
        copied.push_back(copies > 1);
      }
      first += block.rows;
    }
  }
};

constexpr std::int64_t kWhole = 1 << 20;

TEST(Fp8Linear, ColumnParallelRoundsEachOperandAsTheWholeTensorOrItsBlocks) {
  const int ranks = world()->size();
  const std::int64_t in = 144;
  for (const bool blocks : {false, true})
    for (const int kv_heads : {1, 8}) {
      SCOPED_TRACE(fmt::format("{} key and value heads, a scale {}", kv_heads,
                               blocks ? "a block" : "a tensor"));
      const std::vector<model::RowBlock> out = {
          8 * 128, {kv_heads * 128, kv_heads}, {kv_heads * 128, kv_heads}};
      model::ColumnParallelLinear linear({.name = "linear/",
                                          .out = out,
                                          .in = in,
                                          .bias = false,
                                          .fp8 = true,
                                          .fp8_blocks = blocks});
      Fp8Linear run(ranks);
      const auto store = run.prepare(linear);
      const int rank = run.groups.place.tensor;
      const LocalRows local(out, ranks, rank);
      const Matrix x = invented(Fp8Linear::kTokens, in, 1), w = run.weight(linear);
      // The gradient of a row that several ranks have is the sum of a part of each.
      Matrix dy = columns_of(invented(Fp8Linear::kTokens, w.rows, 2), local.rows);
      const Matrix part = columns_of(invented(Fp8Linear::kTokens, w.rows, 3 + rank), local.rows);
      for (std::int64_t t = 0; t < dy.rows; ++t)
        for (std::int64_t i = 0; i < dy.columns; ++i)
          if (local.copied[i]) dy.at(t, i) = part.at(t, i);

      const std::int64_t one = blocks ? 1 : kWhole, block = blocks ? 128 : kWhole;
      const auto amax = blocks ? std::nullopt : std::optional(run.largest(dy));
      const Matrix w_local = transposed(
          columns_of(transposed(quantized(w, /*gradient=*/false, block, block)), local.rows));
      const Tensor x_tensor = run.upload(x), dy_tensor = run.upload(dy);
      const Tensor y = run.tensor(dy_tensor.shape), dx = run.tensor(x_tensor.shape);
      linear.forward(run.context, x_tensor, y, run.kept);
      expect_near(y, product(quantized(x, false, one, block), w_local, false), "y");
      linear.input_gradient(run.context, dy_tensor, dx);
      expect_near(dx, product(quantized(dy, true, one, block, amax), transposed(w_local), false),
                  "dx");
      linear.weight_gradient(run.context, x_tensor, dy_tensor, nullptr, /*add_bias=*/false,
                             run.kept);
      expect_near(
          (*store)["linear/weight"].gradient,
          product(quantized(dy, true, block, one, amax), quantized(x, false, block, one), true),
          "dW");
    }
}

TEST(Fp8Linear, RowParallelRoundsEachOperandAsTheWholeTensorOrItsBlocks) {
  const int ranks = world()->size();
  const std::int64_t out = 144, in = 8 * 128, tokens = Fp8Linear::kTokens;
  for (const bool blocks : {false, true}) {
    SCOPED_TRACE(blocks ? "a scale a block" : "a scale a tensor");
    model::RowParallelLinear linear({.name = "linear/",
                                     .out = {out},
                                     .in = in,
                                     .bias = false,
                                     .fp8 = true,
                                     .fp8_blocks = blocks});
    Fp8Linear run(ranks);
    const auto store = run.prepare(linear);
    const Matrix x = invented(tokens, in, 1), dy = invented(tokens, out, 2), w = run.weight(linear);
    std::vector<std::int64_t> own(in / ranks);
    for (std::int64_t i = 0; i < std::ssize(own); ++i)
      own[i] = run.groups.place.tensor * std::ssize(own) + i;

    const std::int64_t one = blocks ? 1 : kWhole, block = blocks ? 128 : kWhole;
    const Matrix w_rounded = quantized(w, false, block, block);
    const Tensor x_tensor = run.upload(columns_of(x, own)),
                 dy_tensor = run.tensor({tokens, 1, out});
    assign(dy_tensor, dy.values);
    const Tensor y = run.tensor(dy_tensor.shape), dx = run.tensor(x_tensor.shape);
    linear.forward(run.context, x_tensor, y, run.kept);
    model::sp_reduce(run.context, y);
    expect_near(y, product(quantized(x, false, one, block), w_rounded, false), "y");
    const Tensor complete = linear.complete_gradient(run.context, dy_tensor, dy_tensor);
    linear.weight_gradient(run.context, x_tensor, dy_tensor, complete, /*deferred=*/false,
                           model::BiasGradient::elsewhere, run.kept);
    expect_near((*store)["linear/weight"].gradient,
                product(quantized(dy, true, block, one),
                        columns_of(quantized(x, false, block, one), own), true),
                "dW");
    linear.input_gradient(run.context, complete, dx);
    expect_near(
        dx, product(quantized(dy, true, one, block), transposed(columns_of(w_rounded, own)), false),
        "dx");
  }
}

}  // namespace
}  // namespace trireme::test
