#include "data/dataset.hpp"

#include "data/gpt/gpt_dataset.hpp"
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

// Sample n: ids 100 n + 0, 1, 2; labels of which the first is ignored; a length; a name.
class Sentences final : public Dataset {
 public:
  std::int64_t samples() const override { return 5; }
  const std::vector<Field>& fields() const override { return fields_; }
  void read(std::int64_t sample, std::span<const std::span<std::int32_t>> tensors) const override {
    const auto n = static_cast<std::int32_t>(sample);
    for (std::int32_t i = 0; i < 3; ++i) {
      tensors[0][i] = 100 * n + i;
      tensors[1][i] = i == 0 ? kIgnoredLabel : i;
    }
    tensors[2][0] = n + 1;
    tensors[3][0] = 10 * n;
    tensors[3][1] = 10 * n + 1;
  }
  void require_unchanged() const override {}

 private:
  std::vector<Field> fields_ = {{.name = field::kTokens, .size = 3},
                                {.name = field::kLabels, .size = 3, .padding = kIgnoredLabel},
                                {.name = field::kLengths, .size = 1, .padding = 7},
                                {.name = "edges", .size = 2}};
};

std::vector<std::int32_t> values(const Batch& batch, const char* name) {
  const auto tensor = batch.tensor(name);
  return {tensor.begin(), tensor.end()};
}

TEST(Batch, HasEachTensorOfTheDatasetSequenceMajor) {
  const Sentences dataset;
  Batch batch;
  read_micro_batch(dataset, {4, 2, 1, 0}, 0, 1, batch);  // samples 2 and 3
  EXPECT_EQ(batch.samples(), 2);
  EXPECT_EQ(values(batch, field::kTokens),
            (std::vector<std::int32_t>{200, 300, 201, 301, 202, 302}));
  EXPECT_EQ(values(batch, field::kLabels), (std::vector<std::int32_t>{-1, -1, 1, 1, 2, 2}));
  EXPECT_EQ(values(batch, field::kLengths), (std::vector<std::int32_t>{3, 4}));
  EXPECT_EQ(values(batch, "edges"), (std::vector<std::int32_t>{20, 30, 21, 31}));
  EXPECT_TRUE(batch.tensor(field::kTokenTypes).empty());
  EXPECT_EQ(batch.count_labels(field::kLabels), 4);
  EXPECT_EQ(batch.count_labels(field::kSentenceLabels), 0);
}

TEST(Batch, IsPaddedPastTheEndOnlyWhereAskedFor) {
  const Sentences dataset;
  Batch batch;
  expect_error(ExitCode::internal, "samples 4 to 5 of 5", [&] {
    read_micro_batch(dataset, {2, 2, 1, 0}, 4, 0, batch);
  });
  read_micro_batch(dataset, {2, 2, 1, 0, /*past_end=*/true}, 4, 0, batch);
  EXPECT_EQ(values(batch, field::kTokens), (std::vector<std::int32_t>{400, 0, 401, 0, 402, 0}));
  EXPECT_EQ(values(batch, field::kLabels), (std::vector<std::int32_t>{-1, -1, 1, -1, 2, -1}));
  EXPECT_EQ(values(batch, field::kLengths), (std::vector<std::int32_t>{5, 7}));
  EXPECT_EQ(batch.count_labels(field::kLabels), 2);
}

TEST(Batch, TakesGptSamplesOfARankInOrder) {
  auto tokens = std::make_shared<const IndexedDataset>(golden("megatron/a"));
  const GptIndex index = build_gpt_index(tokens->lengths(), {0, 18}, 20, 16, 1234);
  const GptDataset dataset({tokens, index}, {.sequence = 16, .vocab = 64});
  Batch batch;
  read_micro_batch(dataset, {8, 2, 2, 1}, 8, 1, batch);
  std::vector<std::int32_t> sample(17);
  for (std::int64_t row = 0; row < 2; ++row) {
    dataset.read_tokens(8 + 4 + 2 + row, sample);
    for (std::int64_t t = 0; t < 16; ++t) {
      EXPECT_EQ(batch.tensor(field::kTokens)[t * 2 + row], sample[t]);
      EXPECT_EQ(batch.tensor(field::kLabels)[t * 2 + row], sample[t + 1]);
    }
  }
}

class BatchPrefetcherTest : public ScratchTest {
 protected:
  BatchPrefetcherTest() {
    write_dataset<std::uint16_t>(folder_ / "d", {50, 60, 70}, TokenType::uint16);
    dataset_.emplace(
        open_gpt_split(
            {.prefix = folder_ / "d", .samples = 16, .format = {.sequence = 8, .vocab = 200}}),
        SampleFormat{.sequence = 8, .vocab = 200});
  }

  /// Labels of micro-batch `k` after `consumed` samples, read without prefetching.
  std::vector<std::int32_t> read(std::int64_t consumed, std::int64_t k) const {
    Batch batch;
    read_micro_batch(*dataset_, sampler_, consumed, k, batch);
    return values(batch, field::kLabels);
  }

  const Sampler sampler_{.global_batch = 8, .micro_batch = 2, .data_ranks = 2, .data_rank = 1};
  std::optional<GptDataset> dataset_;
};

TEST_F(BatchPrefetcherTest, HasTheBatchThatIsNext) {
  BatchPrefetcher prefetcher;
  EXPECT_EQ(prefetcher.find(*dataset_, sampler_, 0, 0), nullptr);
  prefetcher.finish();
  prefetcher.start(*dataset_, sampler_, 8, /*check_files=*/true);
  EXPECT_EQ(prefetcher.find(*dataset_, sampler_, 8, 0), nullptr) << "not waited for";
  prefetcher.finish();
  EXPECT_EQ(prefetcher.find(*dataset_, sampler_, 0, 0), nullptr);
  // The files are not needed any more.
  const auto first = read(8, 0), second = read(8, 1);
  std::filesystem::resize_file(folder_ / "d.bin", 0);
  for (int k = 0; k < 2; ++k) {
    const Batch* batch = prefetcher.find(*dataset_, sampler_, 8, k);
    ASSERT_NE(batch, nullptr);
    EXPECT_EQ(values(*batch, field::kLabels), k == 0 ? first : second);
  }
}

TEST_F(BatchPrefetcherTest, ThrowsWhatReadingMet) {
  BatchPrefetcher prefetcher;
  std::filesystem::resize_file(folder_ / "d.bin", 0);
  prefetcher.start(*dataset_, sampler_, 0, /*check_files=*/false);
  expect_error(ExitCode::io, "d.bin' ends at byte ", [&] { prefetcher.finish(); });
  prefetcher.start(*dataset_, sampler_, 0, /*check_files=*/true);
  expect_error(ExitCode::io, "d.bin' has 0 bytes; it had 360", [&] { prefetcher.finish(); });
}

}  // namespace
}  // namespace trireme::data
