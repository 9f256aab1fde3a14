#include "kernels/attention.hpp"

#include "attention_problem.hpp"

namespace trireme::kernels {
namespace {

class AttentionOnGpu : public ::testing::TestWithParam<DType> {};

TEST_P(AttentionOnGpu, IsAsNearAsAPlainVersion) {
  constexpr Case kCases[] = {
      {1, 2, 3, 4},     {7, 3, 1, 16},    {64, 1, 3, 24},   {65, 2, 3, 64},   {127, 1, 3, 80},
      {200, 3, 1, 96},  {333, 1, 1, 100}, {65, 1, 3, 104},  {200, 1, 3, 128}, {127, 1, 1, 256},
      {64, 3, 1, 33},   {333, 2, 1, 64},  {129, 1, 2, 72},  {70, 1, 1, 200},  {1024, 1, 1, 64},
      {260, 1, 1, 112}, {260, 3, 5, 64},  {520, 1, 3, 128}, {140, 2, 2, 56},  {130, 1, 2, 120},
      {129, 9, 15, 64}, {260, 5, 9, 128}};  // more blocks of queries than SMs
  Comparison comparison;
  for (const Case& size : kCases)
    for (const double probability : {0.0, 0.2})
      for (const bool causal : {true, false})
        comparison.add({size, GetParam(), probability, causal},
                       text_of(size, GetParam(), probability, causal));
  comparison.expect_near();
}

// Compute capability 8.6 has less shared memory: other tiles.
TEST_P(AttentionOnGpu, FitsTheSmallestSharedMemory) {
  for (const Case& size : {Case{333, 1, 1, 64}, Case{200, 1, 1, 80}, Case{333, 1, 1, 96},
                           Case{127, 1, 1, 100}, Case{260, 1, 1, 128}, Case{132, 1, 1, 256}}) {
    Problem problem(size, GetParam(), 0.0, true);
    const device::Buffer workspace = gpu().allocate(problem.workspace(), "a test");
    const cuda::Context context{.stream = gpu().stream(),
                                .workspace = static_cast<std::byte*>(workspace.get()),
                                .workspace_bytes = problem.workspace(),
                                .capability = 86,
                                .shared_memory_bytes = 99 << 10};
    Comparison comparison(&context);
    for (const double probability : {0.0, 0.2}) {
      problem.dropout = dropout_of(probability);
      const std::string name = text_of(size, GetParam(), probability, true) + ", 99 KB";
      problem.document_start.clear();
      comparison.add(problem, name);
      problem.cut_documents(60);
      comparison.add(problem, name + ", documents");
    }
    comparison.expect_near();
  }
}

TEST_P(AttentionOnGpu, StaysWithinDocuments) {
  constexpr Case kCases[] = {{1, 2, 3, 4},    {65, 2, 3, 64},  {333, 3, 2, 64},  {200, 2, 2, 80},
                             {333, 1, 1, 96}, {260, 2, 1, 72}, {127, 1, 2, 100}, {520, 2, 3, 128},
                             {257, 2, 1, 33}, {260, 1, 1, 256}};
  Comparison comparison;
  for (const Case& size : kCases)
    for (const std::int64_t mean : {1, 9, 90, 300})
      for (const double probability : {0.0, 0.2})
        for (const bool causal : {true, false}) {
          Problem problem(size, GetParam(), probability, causal);
          problem.cut_documents(mean);
          comparison.add(problem, text_of(size, GetParam(), probability, causal) +
                                      ", documents of about " + std::to_string(mean));
        }
  comparison.expect_near();
}

// More tiles of queries attend to a block of keys than a warp looks at at once; more blocks of keys
// than SMs.
TEST_P(AttentionOnGpu, StaysWithinLongDocuments) {
  if (GetParam() != DType::bf16) GTEST_SKIP() << "one type is enough: minutes on the host";
  Comparison comparison;
  for (const Case& size : {Case{4500, 1, 1, 64}, Case{2300, 1, 1, 128}}) {
    Problem problem(size, GetParam(), 0.0, true);
    problem.document_start =
        cut_into_documents(size.s, [&](std::int64_t i) { return i == 0 ? size.s - 90 : 90; });
    comparison.add(problem, text_of(size, GetParam(), 0.0, true) + ", one long document");
  }
  for (const Case& size : {Case{260, 9, 15, 64}, Case{390, 5, 15, 128}}) {
    Problem problem(size, GetParam(), 0.0, true);
    problem.cut_documents(70);
    comparison.add(problem, text_of(size, GetParam(), 0.0, true) + ", many short documents");
  }
  comparison.expect_near();
}

TEST_P(AttentionOnGpu, SkipsPadding) {
  constexpr Case kCases[] = {
      {1, 2, 3, 4},     {65, 7, 2, 64},    {333, 7, 2, 64},  {200, 4, 2, 80}, {333, 3, 1, 96},
      {260, 4, 1, 112}, {127, 4, 2, 100},  {520, 7, 1, 128}, {257, 3, 1, 33}, {260, 3, 1, 256},
      {512, 7, 3, 64},  {300, 14, 15, 64}, {128, 14, 11, 64}};
  Comparison comparison;
  for (const Case& size : kCases)
    for (const double probability : {0.0, 0.2})
      for (const bool causal : {true, false}) {
        Problem problem(size, GetParam(), probability, causal);
        problem.pad();
        const std::string name = text_of(size, GetParam(), probability, causal) + ", padding";
        comparison.add(problem, name);
        problem.cut_documents(90);
        if (size.d >= 64 && size.d <= 128) comparison.add(problem, name + ", documents");
      }
  comparison.expect_near();
}

// Query heads in groups that share keys and values, up to all of them; with everything else that
// the kernels treat in their own ways.
TEST_P(AttentionOnGpu, SharesKeysAndValues) {
  constexpr Case kCases[] = {{1, 2, 4, 4, 2},     {65, 2, 6, 64, 2},   {333, 1, 4, 64, 1},
                             {200, 2, 6, 80, 3},  {333, 1, 4, 96, 2},  {127, 1, 4, 100, 2},
                             {520, 1, 8, 128, 2}, {257, 2, 6, 33, 1},  {260, 1, 4, 256, 2},
                             {512, 2, 7, 64, 1},  {136, 5, 28, 128, 4}};
  Comparison comparison;
  for (const Case& size : kCases)
    for (const double probability : {0.0, 0.2})
      for (const bool causal : {true, false}) {
        Problem problem(size, GetParam(), probability, causal);
        const std::string name = text_of(size, GetParam(), probability, causal);
        comparison.add(problem, name);
        problem.cut_documents(90);
        comparison.add(problem, name + ", documents");
        problem.document_start.clear();
        problem.pad();
        comparison.add(problem, name + ", padding");
      }
  comparison.expect_near();
}

// Padding is written as zeros, each time, and nothing of a sample depends on what its padding is.
TEST_P(AttentionOnGpu, PaddingIsZeroAndDoesNotMatter) {
  for (const Case& size : {Case{333, 7, 3, 64}, Case{260, 7, 2, 128}, Case{200, 7, 1, 80}})
    for (const double probability : {0.0, 0.1}) {
      Problem problem(size, GetParam(), probability, false);
      problem.pad();
      const Results first = problem.on_gpu(), second = problem.on_gpu();
      const std::string name = text_of(size, GetParam(), probability, false);
      EXPECT_EQ(first.out, second.out) << name;
      EXPECT_EQ(first.dqkv, second.dqkv) << name;
      const std::int64_t width = size.heads * size.d;
      for (std::int64_t row = 0; row < size.s * size.b; ++row) {
        if (row / size.b < problem.length(row % size.b)) continue;
        for (std::int64_t c = 0; c < 3 * width; ++c) {
          ASSERT_EQ(first.dqkv[row * 3 * width + c], 0.0) << name << ", row " << row;
          problem.qkv[row * 3 * width + c] = 64.0;
          if (c >= width) continue;
          ASSERT_EQ(first.out[row * width + c], 0.0) << name << ", row " << row;
          problem.dout[row * width + c] = -64.0;
        }
      }
      const Results other = problem.on_gpu();
      EXPECT_EQ(first.out, other.out) << name;
      EXPECT_EQ(first.lse, other.lse) << name;
      EXPECT_EQ(first.dqkv, other.dqkv) << name;
    }
}

TEST_P(AttentionOnGpu, OneDocumentChangesNothing) {
  for (const Case& size : {Case{333, 2, 3, 64}, Case{260, 1, 2, 128}, Case{200, 2, 1, 80}}) {
    Problem problem(size, GetParam(), 0.0, true);
    const Results without = problem.on_gpu();
    problem.document_start.assign(size.b * size.s, 0);
    const Results with = problem.on_gpu();
    EXPECT_LT(relative_error(with.out, without.out), 1e-4);
    EXPECT_LT(relative_error(with.lse, without.lse), 1e-6);
    EXPECT_LT(relative_error(with.dqkv, without.dqkv), 1e-4);
  }
}

TEST_P(AttentionOnGpu, GivesTheSameBitsTwice) {
  for (Case size :
       {Case{1024, 3, 11, 64}, Case{520, 2, 9, 128}, Case{777, 3, 5, 80}, Case{300, 2, 5, 256},
        Case{1024, 2, 12, 64, 3}, Case{520, 2, 8, 128, 2}, Case{300, 2, 4, 256, 1}}) {
    // In fp32 all blocks do the same independently: few of them, so that sanitizers finish.
    if (GetParam() == DType::f32) size = {size.s, 1, 4, size.d, size.kv_heads > 0 ? 2 : 0};
    for (const double probability : {0.0, 0.1})
      for (const bool causal : {true, false}) {
        Problem problem(size, GetParam(), probability, causal);
        for (const std::int64_t mean : {0, 150}) {
          if (mean > 0) problem.cut_documents(mean);
          const Results first = problem.on_gpu(), second = problem.on_gpu();
          const std::string name =
              text_of(size, GetParam(), probability, causal) + (mean > 0 ? ", documents" : "");
          EXPECT_EQ(first.out, second.out) << name;
          EXPECT_EQ(first.lse, second.lse) << name;
          EXPECT_EQ(first.dqkv, second.dqkv) << name;
        }
      }
  }
}

// Large scores: one key takes all the probability.
TEST_P(AttentionOnGpu, StaysFiniteForExtremeScores) {
  Problem problem({200, 1, 2, 64}, GetParam(), 0.0, true);
  for (double& value : problem.qkv) value *= 32.0;
  const Results found = problem.on_gpu();
  for (const double value : found.out) ASSERT_TRUE(std::isfinite(value));
  for (const double value : found.dqkv) ASSERT_TRUE(std::isfinite(value));
}

INSTANTIATE_TEST_SUITE_P(Types, AttentionOnGpu,
                         ::testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(AttentionPreconditions, RefusesWhatItCannotCompute) {
  const OnGpu qkv({2, 1, 3 * 257}, DType::f32), out({2, 1, 257}, DType::f32),
      lse({1, 1, 2}, DType::f32);
  EXPECT_THROW(gpu().attention_forward({qkv.tensor(), out.tensor(), lse.tensor(), 1}),
               InternalError);
  EXPECT_THROW(gpu().attention_forward({qkv.tensor(), out.tensor(), lse.tensor(), 2}),
               InternalError);
}

}  // namespace
}  // namespace trireme::kernels
