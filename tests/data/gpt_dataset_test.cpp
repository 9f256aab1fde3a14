#include "data/gpt_dataset.hpp"

#include <nlohmann/json.hpp>

#include "dataset_files.hpp"

namespace trireme::data {
namespace {

class GptDatasetTest : public ScratchTest {
 protected:
  // Documents of `lengths` whose tokens count 0, 1, 2, ..., indexed with seed 3.
  GptDataset counting(const std::vector<std::int32_t>& lengths, std::int64_t wanted,
                      SampleFormat format) {
    write_dataset<std::uint16_t>(folder_ / "d", lengths, TokenType::uint16);
    auto tokens = std::make_shared<const IndexedDataset>(folder_ / "d");
    GptIndex index = build_gpt_index(lengths, {0, std::ssize(lengths)}, wanted, format.sequence, 3);
    return GptDataset({tokens, index}, format);
  }
};

TEST_F(GptDatasetTest, FirstSampleEqualsMegatrons) {
  const auto golden_json = nlohmann::json::parse(read_file(golden("megatron/golden.json")));
  auto tokens = std::make_shared<const IndexedDataset>(golden("megatron/a"));
  for (const auto& [name, wanted] : {std::pair{"gpt_one_epoch", 20}, {"gpt_sep_final", 75}}) {
    const GptDataset dataset(
        {tokens, build_gpt_index(tokens->lengths(), {0, 18}, wanted, 16, 1234)},
        {.sequence = 16, .vocab = 64});
    std::vector<std::int32_t> inputs(16), labels(16);
    dataset.read(0, std::array<std::span<std::int32_t>, 2>{inputs, labels});
    EXPECT_EQ(inputs, golden_json[name]["sample0_tokens"].get<std::vector<std::int32_t>>());
    EXPECT_EQ(labels, golden_json[name]["sample0_labels"].get<std::vector<std::int32_t>>());
  }
}

TEST_F(GptDatasetTest, SamplesAreCutsOfTheDocumentStream) {
  const std::vector<std::int32_t> lengths = {4, 0, 11, 1, 0, 6, 2};
  const GptDataset dataset = counting(lengths, 20, {.sequence = 5, .vocab = 1000});
  const GptIndex& index = dataset.corpora().front().index;
  std::vector<std::int32_t> starts(lengths.size()), stream;
  std::exclusive_scan(lengths.begin(), lengths.end(), starts.begin(), 0);
  for (std::int64_t slot = 0; slot < index.document.rows(); ++slot) {
    const auto document = index.document(slot);
    for (std::int32_t t = 0; t < lengths[document]; ++t) stream.push_back(starts[document] + t);
  }
  ASSERT_GE(dataset.samples(), 20);
  std::vector<std::int32_t> tokens(6);
  for (std::int64_t sample = 0; sample < dataset.samples(); ++sample) {
    dataset.read_tokens(sample, tokens);
    const auto first = stream.begin() + index.shuffle(sample) * 5;
    EXPECT_EQ(tokens, std::vector<std::int32_t>(first, first + 6)) << "sample " << sample;
  }
}

TEST_F(GptDatasetTest, EndOfDocumentMayBeLeftOutOfTheLoss) {
  // One document 0, 1, ..., 8: the token 3 is followed by the label 4.
  const SampleFormat format{.sequence = 8, .vocab = 9, .eod = 3, .eod_loss = false};
  std::vector<std::int32_t> inputs(8), labels(8);
  const std::array<std::span<std::int32_t>, 2> tensors{inputs, labels};
  counting({9}, 1, format).read(0, tensors);
  EXPECT_EQ(inputs, (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(labels, (std::vector<std::int32_t>{1, 2, 3, kIgnoredLabel, 5, 6, 7, 8}));
  SampleFormat counted = format;
  counted.eod_loss = true;
  counting({9}, 1, counted).read(0, tensors);
  EXPECT_EQ(labels, (std::vector<std::int32_t>{1, 2, 3, 4, 5, 6, 7, 8}));
  expect_error(ExitCode::deck, "data.eod_loss = false needs the end-of-document token",
               [&] { counting({9}, 1, {.sequence = 8, .vocab = 9, .eod_loss = false}); });
}

TEST_F(GptDatasetTest, IdsOutsideTheVocabularyAreNamed) {
  std::vector<std::int32_t> tokens(9);
  const auto dataset = counting({4, 5}, 1, {.sequence = 8, .vocab = 8});
  expect_error(ExitCode::data,
               "d': token id 8 in document 1 (sequence 1, token 4) is outside the vocabulary: "
               "model.vocab = 8",
               [&] { dataset.read_tokens(0, tokens); });
  write_dataset<std::int8_t>(folder_ / "n", {9}, TokenType::int8, -1);
  auto negative = std::make_shared<const IndexedDataset>(folder_ / "n");
  const GptDataset other({negative, build_gpt_index(negative->lengths(), {0, 1}, 1, 8, 3)},
                         {.sequence = 8, .vocab = 8});
  expect_error(ExitCode::data, "token id -1 in document 0", [&] { other.read_tokens(0, tokens); });
}

}  // namespace
}  // namespace trireme::data
