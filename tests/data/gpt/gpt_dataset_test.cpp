#include "data/gpt/gpt_dataset.hpp"

#include <nlohmann/json.hpp>
#include <random>

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

using Numbers = std::vector<std::int64_t>;

Numbers numbers_of(const NpyArray& array) {
  Numbers numbers;
  for (std::int64_t row = 0; row < array.rows(); ++row)
    for (std::int64_t column = 0; column < array.columns(); ++column)
      numbers.push_back(array(row, column));
  return numbers;
}

Numbers flat(const nlohmann::json& rows) {
  Numbers numbers;
  for (const auto& row : rows)
    for (const auto& value : row) numbers.push_back(value.get<std::int64_t>());
  return numbers;
}

// Megatron-LM's build_sample_idx (helpers.cpp), line by line: `lengths` consumed sample by sample.
Numbers sequential_sample_index(const NpyArray& document, const std::vector<std::int32_t>& lengths,
                                std::int64_t sequence, std::int64_t samples) {
  Numbers rows = {0, 0};
  std::int64_t slot = 0, offset = 0;
  for (std::int64_t sample = 1; sample <= samples; ++sample) {
    std::int64_t remaining = sequence + 1;
    while (remaining != 0) {
      const std::int64_t length = lengths[document(slot)] - offset;
      remaining -= length;
      if (remaining <= 0) {
        offset += remaining + length - 1;
        remaining = 0;
      } else {
        ++slot;
        offset = 0;
      }
    }
    rows.insert(rows.end(), {slot, offset});
  }
  return rows;
}

TEST(GptIndex, EqualsMegatronsFiles) {
  const IndexedDataset dataset(golden("megatron/a"));
  for (const auto& [name, wanted] : {std::pair{"one_epoch", 20}, {"sep_final", 75}}) {
    const GptIndex index = build_gpt_index(dataset.lengths(), {0, 18}, wanted, 16, 1234);
    const auto bytes = [&, stem = name](const char* part) {
      return read_file(golden(fmt::format("megatron/gpt_{}_{}_index.npy", stem, part)));
    };
    EXPECT_EQ(index.document.serialize(), bytes("document")) << name;
    EXPECT_EQ(index.sample.serialize(), bytes("sample")) << name;
    EXPECT_EQ(index.shuffle.serialize(), bytes("shuffle")) << name;
  }
}

TEST(GptIndex, EqualsNumpysOnManyCorpora) {
  for (const auto& expected : nlohmann::json::parse(read_file(golden("index_golden.json")))) {
    const auto lengths = expected["lengths"].get<std::vector<std::int32_t>>();
    const std::int64_t sequence = expected["sequence"], wanted = expected["wanted"];
    const SequenceRange documents{expected["begin"], expected["end"]};
    const auto tokens = std::accumulate(lengths.begin() + documents.begin,
                                        lengths.begin() + documents.end, std::int64_t{0});
    const EpochPlan plan = plan_epochs(tokens, wanted, sequence);
    EXPECT_EQ(plan.epochs, expected["epochs"].get<std::int64_t>());
    EXPECT_EQ(plan.separate_last_epoch, expected["separate"].get<bool>());
    const GptIndex index = build_gpt_index(lengths, documents, wanted, sequence,
                                           expected["seed"].get<std::uint32_t>());
    EXPECT_EQ(numbers_of(index.document), expected["document"].get<Numbers>());
    EXPECT_EQ(numbers_of(index.sample), flat(expected["sample"]));
    EXPECT_EQ(numbers_of(index.shuffle), expected["shuffle"].get<Numbers>());
  }
}

TEST(GptIndex, EqualsTheSequentialAlgorithmOnRandomCorpora) {
  std::mt19937 random(1);
  for (int corpus = 0; corpus < 300; ++corpus) {
    std::vector<std::int32_t> lengths(1 + random() % 40);
    const std::uint32_t longest = 1u << random() % 9;
    for (auto& length : lengths) length = random() % 3 == 0 ? 0 : random() % (longest + 1);
    lengths[random() % lengths.size()] = 1 + random() % longest;
    const std::int64_t sequence = 1 + random() % 50, wanted = 1 + random() % 100;
    const SequenceRange all{0, std::ssize(lengths)};
    const GptIndex index = build_gpt_index(lengths, all, wanted, sequence, random());
    ASSERT_GE(index.samples(), wanted);
    ASSERT_EQ(numbers_of(index.sample),
              sequential_sample_index(index.document, lengths, sequence, index.samples()))
        << "corpus " << corpus;
    const NpyArray wide =
        build_sample_index(IntegerType::int64, index.document, lengths, sequence, index.samples());
    EXPECT_EQ(wide.type(), IntegerType::int64);
    EXPECT_EQ(numbers_of(wide), numbers_of(index.sample));
    check_gpt_index(index, lengths, sequence, "corpus");
  }
}

TEST(GptIndex, ElementTypesFollowTheSizes) {
  EXPECT_EQ(sample_index_type(2147483647, 5), IntegerType::int32);
  EXPECT_EQ(sample_index_type(2147483648, 5), IntegerType::int64);
  EXPECT_EQ(sample_index_type(5, 2147483648), IntegerType::int64);
  EXPECT_EQ(shuffle_index_type(4294967293), IntegerType::uint32);
  EXPECT_EQ(shuffle_index_type(4294967294), IntegerType::int64);
}

TEST(GptIndex, EpochsAreTheFewestThatSuffice) {
  EXPECT_EQ(plan_epochs(100, std::nullopt, 10).samples, 9);
  EXPECT_EQ(plan_epochs(101, 10, 10).epochs, 1);  // the last sample's label is the last token
  EXPECT_EQ(plan_epochs(100, 10, 10).epochs, 2);
  EXPECT_EQ(plan_epochs(1, 10, 10).epochs, 101);
  EXPECT_EQ(plan_epochs(1, 10, 10).samples, 10);
  // 12 of the 20 samples of epoch 2 are used: fewer than 80 %, so it is shuffled apart.
  EXPECT_TRUE(plan_epochs(201, 32, 10).separate_last_epoch);
  EXPECT_FALSE(plan_epochs(201, 36, 10).separate_last_epoch);
  expect_error(ExitCode::deck, "4611686018427387904 samples of 4 tokens are more than 64-bit",
               [] { plan_epochs(5, std::int64_t{1} << 62, 4); });
  expect_error(ExitCode::internal, "0 tokens per epoch", [] { plan_epochs(0, 5, 4); });
}

TEST(GptIndex, ForeignIndicesAreRefused) {
  const std::vector<std::int32_t> lengths = {5, 0, 9, 7};
  const GptIndex right = build_gpt_index(lengths, {0, 4}, 6, 4, 1);
  const auto refused = [&](const GptIndex& index, const char* text) {
    expect_error(ExitCode::data, text, [&] { check_gpt_index(index, lengths, 4, "stem"); });
  };
  const auto edited = [](const NpyArray& array, std::size_t at, std::int64_t value) {
    Numbers numbers = numbers_of(array);
    numbers[at] = value;
    return array.columns() == 2 ? NpyArray(numbers, 2) : NpyArray(numbers);
  };
  GptIndex index = right;
  index.document = edited(right.document, 1, 4);
  refused(index, "stem: entry 1 of the document index is 4, the dataset has 4 sequences");
  index.document = edited(right.document, 0, -1);
  refused(index, "entry 0 of the document index is -1");
  index = right;
  index.document = NpyArray(Numbers{0});
  index.sample = NpyArray(Numbers{0, 0, 0, 4, 0, 8}, 2);
  index.shuffle = NpyArray(Numbers{0, 1});
  refused(index, "the documents of the document index end before sample 2 of 4 tokens");
  index = right;
  index.sample = edited(right.sample, 3, right.sample(1, 1) + 1);
  refused(index, "stem: row 1 of the sample index is");
  refused(index, "another dataset or sequence length");
  index = right;
  index.shuffle = edited(right.shuffle, 0, right.samples());
  refused(index, "not a permutation");
  index.shuffle = edited(right.shuffle, 1, right.shuffle(0));
  refused(index, "stem: entry 1 of the shuffle index is");
  index.shuffle = NpyArray(Numbers{0});
  refused(index, "rows, the shuffle index 1; expected one row more");
  index = right;
  index.sample = right.shuffle;
  refused(index, "expected a document index [n], a sample index [n, 2] and a shuffle index [n]");
}

}  // namespace
}  // namespace trireme::data
