#include "kernels/decoding.hpp"

#include <algorithm>
#include <numeric>

#include "workbench.hpp"

namespace trireme::kernels {
namespace {

struct AttentionCase {
  std::int64_t heads, kv_heads, d;
  std::vector<std::int32_t> lengths;  ///< of the sequences, the new token included; 0: padding
  std::int64_t window = 0;
};

/// A batch of sequences of unequal length, a new token each, whose blocks lie in no order.
std::vector<Output> attend(Workbench& bench, const AttentionCase& size, bool append) {
  constexpr std::int64_t kPositions = 16;
  const std::int64_t rows = std::ssize(size.lengths),
                     width = (size.heads + 2 * size.kv_heads) * size.d;
  const std::int32_t longest = *std::ranges::max_element(size.lengths);
  const std::int64_t columns = (longest + kPositions - 1) / kPositions, blocks = rows * columns;
  const std::int64_t elements = size.kv_heads * kPositions * size.d;
  std::vector<std::int32_t> lines, positions, table;
  for (std::int64_t i = 0; i < rows; ++i) {
    lines.push_back(size.lengths[i] > 0 ? static_cast<std::int32_t>(i) : -1);
    positions.push_back(std::max(size.lengths[i] - 1, 0));
  }
  for (std::int64_t i = 0; i < blocks; ++i)
    table.push_back(static_cast<std::int32_t>((i * 7 + 3) % blocks));
  if (blocks % 7 == 0) std::iota(table.begin(), table.end(), 0);
  const Tensor memory = bench.random({blocks * 2 * elements}, 1);
  const auto part = [&](std::int64_t first) {
    return memory.rows(first, elements).view({size.kv_heads, kPositions, size.d});
  };
  const KeyValueCache cache{part(0), part(elements), 2 * elements, bench.integers(table), columns};
  const CacheRows where{bench.integers(lines), bench.integers(positions)};
  const Tensor qkv = bench.random({rows, width}, 2, 2.0);
  const Tensor out = bench.poisoned({rows, size.heads * size.d});
  if (!append) bench.backend().cache_append({qkv, cache, where, size.heads, size.kv_heads});
  bench.backend().attention_paged(
      {qkv, cache, where, out, size.heads, size.kv_heads, append, size.window});
  return {{"out", out}, {"cache", memory}};
}

TEST(Decoding, CachedAttentionAgreesWithTheHost) {
  const AttentionCase cases[] = {
      {3, 3, 64, {1, 2, 17, 100, 0, 333, 1024}},
      {2, 2, 5, {40, 7}},
      {1, 1, 256, {700}},
      {4, 1, 128, {33, 600}},
      {6, 2, 64, {65, 0, 129}},
      {14, 2, 64, {65, 300}},
      {20, 2, 80, {90, 200}},
      {3, 3, 96, {1, 511, 512, 513}},
      {2, 1, 100, {77, 300}},
      {3, 3, 64, {1, 99, 100, 101, 0, 1000}, 100},
      {8, 2, 128, {40, 700}, 33},
      {2, 2, 5, {40, 7}, 1},
  };
  for (const DType dtype : kStorageTypes)
    for (const AttentionCase& size : cases)
      for (const bool append : {true, false})
        expect_as_on_host(fmt::format("{} heads, {} of keys, d {}, append {}, window {}",
                                      size.heads, size.kv_heads, size.d, append, size.window),
                          dtype, [&](Workbench& bench) { return attend(bench, size, append); });
}

/// Each row's output is the same, bit by bit, alone and in a batch.
TEST(Decoding, RowsDoNotDependOnTheBatch) {
  for (const DType dtype : kStorageTypes) {
    Workbench bench(true, dtype, dtype);
    constexpr std::int64_t kIn = 1600, kOut = 136;
    const Tensor x = bench.random({8, kIn}, 1), weight = bench.random({kOut, kIn}, 2, 0.05);
    const Tensor norm = bench.random({kIn}, 3), bias = bench.random({kIn}, 4);
    const Tensor all = bench.poisoned({8, kOut});
    bench.backend().decode_linear({.x = x, .weight = weight, .y = all, .norm = {norm, bias}});
    const std::vector<double> expected = bench.read(all);
    for (std::int64_t row = 0; row < 8; ++row) {
      const Tensor one = bench.poisoned({1, kOut});
      bench.backend().decode_linear(
          {.x = x.rows(row, 1), .weight = weight, .y = one, .norm = {norm, bias}});
      const std::vector<double> found = bench.read(one);
      for (std::int64_t i = 0; i < kOut; ++i)
        ASSERT_EQ(found[i], expected[row * kOut + i]) << name_of(dtype) << ", row " << row;
    }
  }
}

TEST(Decoding, LinearAgreesWithTheHost) {
  struct Case {
    std::int64_t rows, out, in;
  };
  for (const DType dtype : kStorageTypes)
    for (const auto& [rows, out, in] : {Case{1, 16, 64}, Case{1, 200, 1600}, Case{8, 40, 6400},
                                        Case{3, 37, 96}, Case{5, 50, 35}, Case{2, 513, 24},
                                        // just below 48 KiB of dynamic shared memory
                                        Case{2, 24, 8192}, Case{5, 24, 2048}}) {
      const std::string title = fmt::format("{} x {} x {}", rows, out, in);
      const auto deviation = 1.0 / std::sqrt(static_cast<double>(in));
      for (const NormKind kind : {NormKind::layer, NormKind::rms})
        expect_as_on_host(title + ", norm", dtype, [&](Workbench& bench) -> std::vector<Output> {
          const Tensor y = bench.poisoned({rows, out});
          const bool layer = kind == NormKind::layer;
          bench.backend().decode_linear(
              {.x = bench.random({rows, in}, 1, 3.0),
               .weight = bench.random({out, in}, 2, deviation),
               .y = y,
               .norm = {bench.random({in}, 3), layer ? bench.random({in}, 4) : Tensor(), 1e-5,
                        kind},
               .bias = bench.random({out}, 5)});
          return {{"y", y}};
        });
      for (const Activation function :
           {Activation::gelu_tanh, Activation::gelu, Activation::silu}) {
        expect_as_on_host(
            title + ", function", dtype, [&](Workbench& bench) -> std::vector<Output> {
              const Tensor y = bench.random({rows, out}, 6);
              bench.backend().decode_linear({.x = bench.random({rows, in}, 1),
                                             .weight = bench.random({out, in}, 2, deviation),
                                             .y = y,
                                             .bias = bench.random({out}, 5),
                                             .function = function,
                                             .residual = y});
              return {{"y", y}};
            });
        expect_as_on_host(title + ", gated", dtype, [&](Workbench& bench) -> std::vector<Output> {
          const Tensor y = bench.poisoned({rows, out});
          bench.backend().decode_linear({.x = bench.random({rows, in}, 1),
                                         .weight = bench.random({2 * out, in}, 2, deviation),
                                         .y = y,
                                         .function = function,
                                         .gated = true});
          return {{"y", y}};
        });
      }
    }
}

TEST(Decoding, TopLogitsAreThoseOfTheHost) {
  for (const DType dtype : kStorageTypes)
    for (const std::int64_t count : {1, 2, 40, 128})
      for (const std::int64_t columns : {128, 1000, 50257}) {
        const auto run = [&](bool on_gpu, DType compute) {
          Workbench bench(on_gpu, compute, dtype);
          const Tensor values = bench.wide_poisoned({3, count});
          const auto ids = bench.backend().allocate(3 * count * sizeof(std::int32_t), "a test");
          // 16-bit logits have many ties.
          bench.backend().top_logits({.logits = bench.random({3, columns + 7}, 1, 0.1),
                                      .columns = columns,
                                      .values = values,
                                      .ids = static_cast<std::int32_t*>(ids.get())});
          std::vector<std::int32_t> found(3 * count);
          bench.backend().download(found.data(), ids.get(), found.size() * sizeof(std::int32_t));
          return std::pair(found, bench.read(values));
        };
        EXPECT_EQ(run(true, dtype), run(false, DType::f32))
            << name_of(dtype) << ", " << count << " of " << columns;
      }
}

}  // namespace
}  // namespace trireme::kernels
