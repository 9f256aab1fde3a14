#include "data/batch_ahead.hpp"

#include "data/gpt_split.hpp"
#include "dataset_files.hpp"

namespace trireme::data {
namespace {

class BatchAheadTest : public ScratchTest {
 protected:
  BatchAheadTest() {
    write_dataset<std::uint16_t>(folder_ / "d", {50, 60, 70}, TokenType::uint16);
    dataset_.emplace(
        open_gpt_split(
            {.prefix = folder_ / "d", .samples = 16, .format = {.sequence = 8, .vocab = 200}}),
        SampleFormat{.sequence = 8, .vocab = 200});
  }

  /// Micro-batch `k` after `consumed` samples as it is read without looking ahead.
  std::vector<std::int32_t> read(std::int64_t consumed, std::int64_t k) const {
    std::vector<std::int32_t> both(2 * kTokens);
    fill_micro_batch(*dataset_, sampler_, consumed, k, std::span(both).first(kTokens),
                     std::span(both).last(kTokens));
    return both;
  }

  static constexpr std::size_t kTokens = 2 * 8;
  const Sampler sampler_{.global_batch = 8, .micro_batch = 2, .data_ranks = 2, .data_rank = 1};
  std::optional<GptDataset> dataset_;
  std::vector<std::int32_t> inputs_ = std::vector<std::int32_t>(kTokens);
  std::vector<std::int32_t> labels_ = std::vector<std::int32_t>(kTokens);
};

TEST_F(BatchAheadTest, HasTheBatchThatIsNext) {
  BatchAhead ahead;
  EXPECT_FALSE(ahead.take(*dataset_, sampler_, 0, 0, inputs_, labels_));
  ahead.finish();
  ahead.start(*dataset_, sampler_, 8, /*check_files=*/true);
  EXPECT_FALSE(ahead.take(*dataset_, sampler_, 8, 0, inputs_, labels_)) << "not waited for";
  ahead.finish();
  EXPECT_FALSE(ahead.take(*dataset_, sampler_, 0, 0, inputs_, labels_));
  // The files are not needed any more.
  const auto first = read(8, 0), second = read(8, 1);
  std::filesystem::resize_file(folder_ / "d.bin", 0);
  for (int k = 0; k < 2; ++k) {
    ASSERT_TRUE(ahead.take(*dataset_, sampler_, 8, k, inputs_, labels_));
    std::vector<std::int32_t> both = inputs_;
    both.insert(both.end(), labels_.begin(), labels_.end());
    EXPECT_EQ(both, k == 0 ? first : second);
  }
}

TEST_F(BatchAheadTest, ThrowsWhatReadingMet) {
  BatchAhead ahead;
  std::filesystem::resize_file(folder_ / "d.bin", 0);
  ahead.start(*dataset_, sampler_, 0, /*check_files=*/false);
  expect_error(ExitCode::io, "d.bin' ends at byte ", [&] { ahead.finish(); });
  ahead.start(*dataset_, sampler_, 0, /*check_files=*/true);
  expect_error(ExitCode::io, "d.bin' has 0 bytes; it had 360", [&] { ahead.finish(); });
}

}  // namespace
}  // namespace trireme::data
