#include "train/startup/startup.hpp"

#include <gtest/gtest.h>

#include "../../data/dataset_files.hpp"
#include "decks.hpp"
#include "tokenizer/preprocess/preprocess.hpp"

namespace trireme::train {
namespace {

using data::expect_error;
using data::TokenScan;

class DatasetChecksTest : public testing::Test {
 protected:
  /// A dataset of the ids `first` to `first + 199`.
  void write(const std::string& name, std::uint16_t first) const {
    data::write_dataset<std::uint16_t>(folder_ / name, {100, 100}, data::TokenType::uint16, first);
  }
  /// Its record: of a tokenizer whose hash is `hash`.
  void record(const std::string& name, std::uint64_t hash, std::int32_t largest,
              const std::string& library = "") const {
    const tokenizer::DatasetInfo info{.tokenizer = {"gpt2", hash, 300, library},
                                      .largest_id = largest,
                                      .documents = 2,
                                      .tokens = 200};
    write_file_atomically((folder_ / name).string() + ".json", to_json(info));
  }
  deck::Deck deck(const std::string& train, std::vector<std::string> overrides = {}) const {
    overrides.push_back("data.train=" + train);
    return tiny_deck(folder_ / "run", overrides);
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  const plan::Vocabulary vocabulary_{
      .size = 300, .eod = {}, .tokenizer = tokenizer::TokenizerIdentity{"gpt2", 1, 300, "lib 2"}};
  const ScratchFolder scratch_;
  const std::filesystem::path folder_ = scratch_.path();
};

TEST_F(DatasetChecksTest, ARecordMustNameTheDecksTokenizer) {
  write("a", 0);
  record("a", 1, 199, "lib 2");
  EXPECT_TRUE(check_datasets(deck(path("a")), vocabulary_, TokenScan::sample).empty());
  record("a", 2, 199);
  expect_error(ExitCode::deck,
               "data.train: '" + path("a") +
                   "' was made with the tokenizer gpt2 of 300 ids (hash 0000000000000002), but "
                   "data.tokenizer is gpt2 of 300 ids (hash 0000000000000001); give",
               [&] { check_datasets(deck(path("a")), vocabulary_, TokenScan::sample); });
  // Without data.tokenizer the ids alone can be wrong.
  EXPECT_TRUE(check_datasets(deck(path("a")), {.size = 200}, TokenScan::sample).empty());
  expect_error(ExitCode::data, "holds the token id 199, outside the vocabulary: model.vocab = 199",
               [&] { check_datasets(deck(path("a")), {.size = 199}, TokenScan::sample); });
}

TEST_F(DatasetChecksTest, EveryDatasetOfABlendAndOfEachSplitIsChecked) {
  for (const char* name : {"a", "b"}) {
    write(name, 0);
    record(name, 1, 199, "lib 2");
  }
  const std::string blend = "[1, " + path("a") + ", 1, " + path("b") + "]";
  EXPECT_TRUE(check_datasets(deck(blend), vocabulary_, TokenScan::sample).empty());
  record("b", 2, 199);
  expect_error(ExitCode::deck, "data.train: '" + path("b") + "' was made with",
               [&] { check_datasets(deck(blend), vocabulary_, TokenScan::sample); });
  expect_error(ExitCode::deck, "data.valid: '" + path("b") + "' was made with", [&] {
    check_datasets(deck(path("a"), {"data.valid=" + path("b"), "evaluate.every=10"}), vocabulary_,
                   TokenScan::sample);
  });
}

TEST_F(DatasetChecksTest, IdsSpeakWhereThereIsNoRecord) {
  write("a", 50);
  const auto notes = check_datasets(deck(path("a")), vocabulary_, TokenScan::sample);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_EQ(notes[0], "'" + path("a") +
                          "' has no a.json that names its tokenizer; the largest id of 200 tokens "
                          "is 249, the vocabulary has 300");
  expect_error(ExitCode::data, "holds the token id 249, outside the vocabulary: model.vocab = 249",
               [&] { check_datasets(deck(path("a")), {.size = 249}, TokenScan::sample); });
}

TEST_F(DatasetChecksTest, AnotherVersionOfTheLibraryIsNoted) {
  write("a", 0);
  record("a", 1, 199, "lib 1");
  const auto notes = check_datasets(deck(path("a")), vocabulary_, TokenScan::sample);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_TRUE(notes[0].starts_with("warning: '" + path("a") +
                                   "' was made with lib 1, this program has lib 2"))
      << notes[0];
}

TEST_F(DatasetChecksTest, TokensTellTrainingDataApart) {
  write("a", 0);
  const auto identify = [&](TokenScan scan) {
    return identify_training_data(deck(path("a")), vocabulary_, scan);
  };
  const TrainingData before = identify(TokenScan::all);
  EXPECT_EQ(before.files, std::vector<std::string>{path("a.bin")});
  EXPECT_EQ(changed_file(before.tokens, identify(TokenScan::sample)), "");
  EXPECT_EQ(changed_file(before.tokens, identify(TokenScan::all)), "");
  write("a", 1);
  EXPECT_EQ(identify(TokenScan::sample).documents, before.documents);
  EXPECT_EQ(changed_file(before.tokens, identify(TokenScan::sample)), path("a.bin"));
  EXPECT_EQ(changed_file("", identify(TokenScan::sample)), "") << "not known";
}

TEST_F(DatasetChecksTest, BertTrainsOnSentences) {
  // 8 documents of 3 sentences of 4 tokens.
  const std::vector<std::int32_t> lengths(24, 4);
  data::write_dataset<std::uint16_t>(folder_ / "a", lengths, data::TokenType::uint16, 10);
  data::IdxContent idx = data::make_idx(lengths, data::TokenType::uint16);
  idx.first_sequences = {0, 3, 6, 9, 12, 15, 18, 21, 24};
  write_file_atomically(path("a.idx"), idx.bytes());

  plan::Vocabulary vocabulary{.size = 300};
  data::BertVocabulary bert{.cls = 1, .sep = 2, .mask = 3, .pad = 0};
  bert.continues_word.resize(300);
  vocabulary.bert = std::make_shared<const data::BertVocabulary>(bert);
  const std::vector<std::string> family = {
      "model.family=bert", "data.tokenizer={type: wordpiece, vocab: v.txt, lowercase: true}",
      "train.iterations=5", "data.split=[6, 2]", "data.bert.short_sequence=0"};
  EXPECT_EQ(describe_data(deck(path("a"), family), vocabulary),
            "train      6 documents, 72 tokens; 20 samples wanted: 4 epochs\n"
            "valid      2 documents, 24 tokens; 40 samples wanted: 20 epochs\n");
  EXPECT_TRUE(check_datasets(deck(path("a"), family), vocabulary, TokenScan::sample).size() == 1);

  // The tokens of the training documents alone tell the data apart.
  const auto tokens = [&] {
    return identify_training_data(deck(path("a"), family), vocabulary, TokenScan::sample).tokens;
  };
  const std::string before = tokens();
  const std::string bin = read_file(path("a.bin"));
  std::string changed = bin;
  changed.back() ^= 1;  // of the last document
  write_file_atomically(path("a.bin"), changed);
  EXPECT_EQ(tokens(), before);
  changed = bin;
  changed.front() ^= 1;
  write_file_atomically(path("a.bin"), changed);
  EXPECT_NE(tokens(), before);
}

}  // namespace
}  // namespace trireme::train
