#include "data/sampler.hpp"

#include "dataset_files.hpp"

namespace trireme::data {
namespace {

// Samples of one iteration, micro-batch by micro-batch, rank by rank.
std::vector<std::int64_t> samples_of_iteration(Sampler sampler, std::int64_t consumed) {
  std::vector<std::int64_t> samples;
  for (std::int64_t k = 0; k < sampler.micro_batches(); ++k)
    for (sampler.data_rank = 0; sampler.data_rank < sampler.data_ranks; ++sampler.data_rank)
      for (std::int64_t i = 0; i < sampler.micro_batch; ++i)
        samples.push_back(sampler.first_sample(consumed, k) + i);
  return samples;
}

TEST(Sampler, EveryLayoutTakesTheSameSamplesInOrder) {
  for (const std::int64_t consumed : {0, 24, 72}) {
    std::vector<std::int64_t> expected(24);
    std::iota(expected.begin(), expected.end(), consumed);
    for (const std::int64_t micro : {1, 2, 3, 4, 6, 12})
      for (std::int64_t data = 1; data <= 24 / micro; ++data)
        if (24 % (micro * data) == 0) {
          EXPECT_EQ(samples_of_iteration({24, micro, data, 0}, consumed), expected)
              << micro << " x " << data << " from " << consumed;
        }
  }
}

TEST(Sampler, ResumingContinuesWhereTheRunStopped) {
  // Iterations 0..5 at one layout; 0..2, then 3..5 from the count alone at another.
  const Sampler first{12, 2, 3, 0}, second{12, 3, 2, 0};
  std::vector<std::int64_t> whole, pieces;
  for (std::int64_t iteration = 0; iteration < 6; ++iteration) {
    const auto a = samples_of_iteration(first, iteration * 12);
    const auto b = samples_of_iteration(iteration < 3 ? first : second, iteration * 12);
    whole.insert(whole.end(), a.begin(), a.end());
    pieces.insert(pieces.end(), b.begin(), b.end());
  }
  EXPECT_EQ(whole, pieces);
}

TEST(Sampler, FillsAMicroBatchRowByRow) {
  auto tokens = std::make_shared<const IndexedDataset>(golden("megatron/a"));
  const GptIndex index = build_gpt_index(tokens->lengths(), {0, 18}, 20, 16, 1234);
  const GptDataset dataset({tokens, index}, {.sequence = 16, .vocab = 64});
  const Sampler sampler{8, 2, 2, 1};
  std::vector<std::int32_t> inputs(32), labels(32), sample(17);
  fill_micro_batch(dataset, sampler, 8, 1, inputs, labels);
  for (std::int64_t row = 0; row < 2; ++row) {
    dataset.read(8 + 4 + 2 + row, sample);
    for (std::int64_t t = 0; t < 16; ++t) {
      EXPECT_EQ(inputs[row * 16 + t], sample[t]);
      EXPECT_EQ(labels[row * 16 + t], sample[t + 1]);
    }
  }
  expect_error(ExitCode::internal, "samples 20 to 21 of 21", [&] {
    fill_micro_batch(dataset, {2, 2, 1, 0}, 20, 0, inputs, labels);
  });

  // Past the end, only where that is asked for: one sample that is there and one that is empty.
  fill_micro_batch(dataset, {2, 2, 1, 0, /*past_end=*/true}, 20, 0, inputs, labels);
  dataset.read(20, sample);
  for (std::int64_t t = 0; t < 16; ++t) {
    EXPECT_EQ(labels[t], sample[t + 1]);
    EXPECT_EQ(inputs[16 + t], 0);
    EXPECT_EQ(labels[16 + t], kIgnoredLabel);
  }
}

}  // namespace
}  // namespace trireme::data
