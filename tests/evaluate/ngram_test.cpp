#include "evaluate/tasks.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "../scratch_folder.hpp"
#include "data/gpt/gpt_dataset.hpp"
#include "tokenizer/preprocess/preprocess.hpp"

namespace trireme::evaluate {
namespace {

class NgramTest : public testing::Test {
 protected:
  /// One document as a dataset whose samples see all of its labels.
  data::GptDataset dataset(const std::string& name, const std::vector<std::int32_t>& tokens,
                           std::int32_t vocab) {
    tokenizer::DatasetWriter writer(folder_ / name, vocab);
    writer.add_document(tokens);
    writer.finish();
    return data::open_gpt_blend(
        {.prefixes = {folder_ / name},
         .common = {.format = {.sequence = std::ssize(tokens) - 1, .vocab = vocab}}});
  }

  const ScratchFolder scratch_;
  const std::filesystem::path folder_ = scratch_.path();
};

TEST_F(NgramTest, CountsByHand) {
  // Training pairs: 0>1, 1>0, 0>1, 1>2; labels: 1, 0, 1, 2.
  const auto train = dataset("train", {0, 1, 0, 1, 2}, 3);
  // Scored pairs: 0>1 (seen twice of two), 1>1 (never seen, context 1 seen twice with two
  // followers), 1>2 (seen once of two).
  const auto held_out = dataset("held_out", {0, 1, 1, 2}, 3);
  const NgramLoss loss = ngram_loss(train, held_out, 3);
  EXPECT_EQ(loss.tokens, 3);
  const double p1 = 3.0 / 7.0, p2 = 2.0 / 7.0;  // (count + 1) / (4 + 3)
  EXPECT_NEAR(loss.unigram, -(std::log(p1) + std::log(p1) + std::log(p2)) / 3.0, 1e-12);
  const double bigrams[] = {(2.0 + 1.0 * p1) / 3.0, (0.0 + 2.0 * p1) / 4.0, (1.0 + 2.0 * p2) / 4.0};
  EXPECT_NEAR(loss.bigram,
              -(std::log(bigrams[0]) + std::log(bigrams[1]) + std::log(bigrams[2])) / 3.0, 1e-12);
}

TEST_F(NgramTest, UnknownContextFallsBackToTheUnigram) {
  const auto train = dataset("train", {0, 1, 0, 1, 0}, 4);
  const auto held_out = dataset("held_out", {3, 1}, 4);
  const NgramLoss loss = ngram_loss(train, held_out, 4);
  EXPECT_NEAR(loss.bigram, -std::log(3.0 / 8.0), 1e-12);
  EXPECT_EQ(loss.bigram, loss.unigram);
}

}  // namespace
}  // namespace trireme::evaluate
