// The arithmetic of the CUDA kernels that runs on the host too.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/cuda/common/arithmetic.hpp"
#include "kernels/cuda/workspace.hpp"

namespace trireme::kernels::cuda {
namespace {

TEST(Divisor, DividesAllNumbersBelow2To31) {
  constexpr std::uint32_t kLast = (1u << 31) - 1;
  for (const std::uint32_t d :
       {1u, 2u, 3u, 5u, 7u, 96u, 200u, 641u, 1600u, 65535u, 65537u, 1000003u, kLast, 1u << 31}) {
    const Divisor divisor(d);
    for (std::uint32_t multiple = 0; multiple < 50; ++multiple) {
      // Around multiples of the divisor, small ones and the largest ones.
      for (const std::int64_t near :
           {std::int64_t{multiple} * d, std::int64_t{kLast / d - multiple} * d}) {
        for (std::int64_t n = near - 2; n <= near + 2; ++n) {
          if (n < 0 || n > kLast) continue;
          ASSERT_EQ(divisor.quotient(static_cast<std::uint32_t>(n)), n / d) << n << " / " << d;
        }
      }
    }
    EXPECT_EQ(divisor.quotient(kLast), kLast / d);
  }
}

TEST(ChunkRanges, CountTheBoundsUpToAnElement) {
  const std::vector<std::int64_t> bounds = {0, 3, 40, 40, 50, 64, 64, 64, 64, 90, 128};
  for (const std::int64_t chunk : {1, 7, 64, 200}) {
    for (std::int64_t begin = 0; begin < 200; begin += chunk) {
      const std::int64_t end = std::min<std::int64_t>(begin + chunk, 200);
      const ChunkRanges all({}, begin, end);
      const ChunkRanges some({bounds.data(), static_cast<std::int64_t>(bounds.size())}, begin, end);
      bool same = true, first_inside = false;
      for (std::int64_t i = begin; i < end; ++i) {
        bool inside = false;
        for (const std::int64_t bound : bounds) inside ^= bound <= i;
        if (i == begin) first_inside = inside;
        same &= inside == first_inside;
        EXPECT_EQ(some.contains(i), inside) << i << " in chunks of " << chunk;
        EXPECT_TRUE(all.contains(i));
      }
      EXPECT_TRUE(!some.uniform() || same);
    }
  }
}

TEST(CudaDropoutMask, IsThatOfTheStream) {
  constexpr std::uint64_t kFirstSample = (std::uint64_t{1} << 40) - 1;
  const Dropout dropout{.probability = 0.3,
                        .seed = 0xFEDCBA9876543210ull,
                        .first_sample = &kFirstSample,
                        .layer = 11,
                        .site = DropoutSite::projection};
  const DropoutMask mask(dropout);
  for (const std::uint32_t sample : {0u, 1u, 5u}) {
    const DropoutStream stream{.seed = dropout.seed,
                               .sample = kFirstSample + sample,
                               .layer = dropout.layer,
                               .site = dropout.site};
    for (const std::uint64_t first :
         {std::uint64_t{0}, std::uint64_t{8} << 32, std::uint64_t{520}}) {
      float eight[8], four[4];
      for (float& value : eight) value = 2.0f;
      for (float& value : four) value = 2.0f;
      mask.apply(eight, sample, first);
      mask.apply(four, sample, first + 4);
      for (int i = 0; i < 8; ++i) {
        const Philox4 words = stream.words((first + i) / 4);
        const std::uint32_t word[] = {words.x, words.y, words.z, words.w};
        const bool dropped = word[i % 4] < dropout_threshold(dropout.probability);
        const float expected = dropped ? 0.0f : 2.0f * static_cast<float>(1.0 / 0.7);
        float one[1] = {2.0f};
        mask.apply(one, sample, first + i);
        EXPECT_EQ(one[0], expected) << first + i;
        EXPECT_EQ(eight[i], expected) << first + i;
        if (i < 4) continue;
        EXPECT_EQ(four[i - 4], expected) << first + i;
      }
    }
  }
}

// The sums of embedding_backward, chunk by chunk, for tokens that are worth their place.
TEST(TokenChunk, SendsEverySumToItsRow) {
  const std::vector<std::vector<std::uint32_t>> lists = {
      {0},
      {0, 0, 0, 0},
      {0, 0, 0, 0, 1, 1, 1, 1},
      {0, 1, 2, 3, 4, 5, 6, 7, 8},
      {0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 7},
      {5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5},
      {1, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 4}};
  constexpr std::int64_t kChunk = 4;
  for (const auto& rows : lists) {
    const auto tokens = static_cast<std::int64_t>(rows.size());
    const std::int64_t chunks = (tokens + kChunk - 1) / kChunk;
    std::vector<double> expected(10), table(10), heads(chunks), tails(chunks);
    for (std::int64_t i = 0; i < tokens; ++i) expected[rows[i]] += 1.0 + i;
    for (std::int64_t c = 0; c < chunks; ++c) {
      const TokenChunk chunk(rows.data(), tokens, c, kChunk);
      double sum = 0.0;
      for (std::int64_t i = chunk.begin; i < chunk.end; ++i) {
        sum += 1.0 + i;
        if (!chunk.run_ends(i)) continue;
        const RunSum destination = chunk.destination(i);
        (destination == RunSum::whole  ? table[rows[i]]
         : destination == RunSum::head ? heads[c]
                                       : tails[c]) += sum;
        sum = 0.0;
      }
      EXPECT_EQ(sum, 0.0);
    }
    for (std::int64_t c = 0; c < chunks; ++c) {
      const TokenChunk chunk(rows.data(), tokens, c, kChunk);
      if (!chunk.has_tail()) continue;
      const std::uint32_t row = rows[chunk.end - 1];
      table[row] += tails[c];
      for (std::int64_t next = c + 1; next < chunks && rows[next * kChunk] == row; ++next)
        table[row] += heads[next];
    }
    EXPECT_EQ(table, expected);
  }
}

TEST(Workspace, IsModest) {
  // GPT-2 1.5B, 16 x 1024 tokens.
  EXPECT_LE(layernorm_backward_workspace(1600), std::size_t{8} << 20);
  EXPECT_LE(gelu_backward_workspace(6400), std::size_t{1} << 20);
  EXPECT_LE(embedding_backward_workspace(16384, 1600), std::size_t{16} << 20);
}

}  // namespace
}  // namespace trireme::kernels::cuda
