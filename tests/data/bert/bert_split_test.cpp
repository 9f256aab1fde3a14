#include "data/bert/bert_split.hpp"

#include <fstream>

#include "bert/bert_samples.hpp"
#include "core/files.hpp"
#include "data/indexed_dataset.hpp"

namespace trireme::data {
namespace {

/// Datasets a, b and c of 20 documents of 3 sentences; the tokens of each are its own.
class BertSplitTest : public ScratchTest {
 protected:
  BertSplitTest() {
    std::uint16_t first = 10;
    for (const std::string name : {"a", "b", "c"}) {
      const std::vector<std::int32_t> lengths(60, 5);
      write_dataset<std::uint16_t>(folder_ / name, lengths, TokenType::uint16, first, 0);
      IdxContent idx = make_idx(lengths, TokenType::uint16);
      idx.first_sequences = {};
      for (std::int64_t sentence = 0; sentence <= 60; sentence += 3)
        idx.first_sequences.push_back(sentence);
      write_file_atomically(folder_ / (name + ".idx"), idx.bytes());
      first += 10;
    }
    config_.names = {path("a"), path("b"), path("c")};
    config_.common.format = {.sequence = 18, .vocabulary = make_vocabulary(100, 1000)};
    config_.common.index_cache = folder_ / "cache";
    config_.vocab = 100;
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  /// Which dataset a sample is of: its second token, or the label of that.
  static int origin(const SampleBuffer& sample) {
    const std::int32_t label = sample.labels()[1];
    return (label >= 0 ? label : sample.tokens()[1]) / 10 - 1;
  }

  /// How many of the first `count` samples are of each dataset.
  static std::vector<int> shares(const Dataset& dataset, std::int64_t count) {
    std::vector<int> found(3);
    for (std::int64_t i = 0; i < count; ++i) ++found.at(origin(read_sample(dataset, i)));
    return found;
  }

  BertSplitConfig config_;
};

TEST_F(BertSplitTest, TakesItsVocabularyFromATokenizer) {
  write_file_atomically(path("vocab.txt"),
                        "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nmask\n##ing\n##s\n");
  const auto wordpiece = tokenizer::make_tokenizer(
      {.type = "wordpiece", .vocab = path("vocab.txt"), .lowercase = true});
  const BertVocabulary vocabulary = bert_vocabulary(*wordpiece);
  EXPECT_EQ(vocabulary.pad, 0);
  EXPECT_EQ(vocabulary.cls, 2);
  EXPECT_EQ(vocabulary.sep, 3);
  EXPECT_EQ(vocabulary.mask, 4);
  EXPECT_EQ(vocabulary.continues_word,
            (std::vector<bool>{false, false, false, false, false, false, true, true}));
  expect_error(ExitCode::deck, "data.tokenizer: a vocabulary of type bytes without [CLS]",
               [] { bert_vocabulary(*tokenizer::make_tokenizer({.type = "bytes"})); });
}

TEST_F(BertSplitTest, BlendsDatasetsByWeight) {
  config_.weights = {6, 3, 1};
  config_.common.samples = 200;
  const auto dataset = open_bert_split(config_);
  EXPECT_EQ(dataset->samples(), summarize_bert_split(config_).samples);
  EXPECT_GE(dataset->samples(), 200);
  EXPECT_EQ(shares(*dataset, 200), (std::vector<int>{120, 60, 20}));
  // The order is that of Megatron-LM's blends, and each dataset's samples come in their order.
  const BlendIndex index = build_blend_index(normalize_blend(config_.weights), 200);
  BertSplitConfig single = config_;
  single.names = {path("b")};
  single.weights = {};
  single.common.samples = share_to_build(0.3, 200);
  const auto b = open_bert_split(single);
  for (std::int64_t i = 0; i < 200; ++i) {
    if (index.dataset(i) != 1) continue;
    EXPECT_EQ(read_sample(*dataset, i).values, read_sample(*b, index.sample(i)).values);
  }
  // Processes that do not build find everything after the barrier.
  const auto other = open_bert_split(config_, {.builds = false});
  for (const std::int64_t i : {0, 57, 199})
    EXPECT_EQ(read_sample(*other, i).values, read_sample(*dataset, i).values);
}

TEST_F(BertSplitTest, UsesDatasetsWithoutWeightsOnce) {
  const BlendSummary summary = summarize_bert_split(config_);
  EXPECT_EQ(summary.samples, 60);
  ASSERT_EQ(summary.datasets.size(), 3u);
  EXPECT_EQ(summary.datasets[1].documents, (SequenceRange{0, 20}));
  EXPECT_EQ(summary.datasets[1].tokens, 300);
  const auto dataset = open_bert_split(config_);
  EXPECT_EQ(shares(*dataset, 60), (std::vector<int>{20, 20, 20}));
  config_.common.samples = 61;
  expect_error(ExitCode::deck, "3 datasets without weights has 60 samples, the run takes 61",
               [&] { open_bert_split(config_); });
  // One alone is repeated.
  config_.names = {path("a")};
  EXPECT_EQ(summarize_bert_split(config_).datasets[0].epochs, 4);
  EXPECT_GE(open_bert_split(config_)->samples(), 61);
}

TEST_F(BertSplitTest, ASummaryChecksTheMapThatTheDeckNames) {
  config_.names = {path("a")};
  config_.common.samples = 61;
  const std::int64_t rows = open_bert_split(config_)->samples();
  for (const auto& map : std::filesystem::directory_iterator(config_.common.index_cache))
    config_.common.index_files = map.path().string();
  EXPECT_EQ(summarize_bert_split(config_).samples, rows);
  config_.common.samples = rows + 1;
  expect_error(ExitCode::data, fmt::format("holds {} samples, the run takes {}", rows, rows + 1),
               [&] { summarize_bert_split(config_); });
  config_.common.index_files = path("maps");
  expect_error(ExitCode::deck, "maps' names no part", [&] { summarize_bert_split(config_); });
}

TEST_F(BertSplitTest, TheFirstReleaseTakesDocumentsAlike) {
  config_.dialect = BertDialect::v0;
  config_.common.samples = 3000;
  EXPECT_EQ(summarize_bert_split(config_).datasets[0].documents, (SequenceRange{0, 60}));
  const auto dataset = open_bert_split(config_);
  for (const int share : shares(*dataset, 3000)) EXPECT_NEAR(share, 1000, 120);
  // Half of the second segments are of a random other document.
  int random_next = 0;
  for (std::int64_t i = 0; i < 3000; ++i) random_next += read_sample(*dataset, i).sentence_label();
  EXPECT_GT(random_next, 1500);  // also where a document's last sentence is drawn
  config_.weights = {1, 1, 1};
  expect_error(ExitCode::deck, "datasets have no weights with data.bert.dialect = v0",
               [&] { open_bert_split(config_); });
}

TEST_F(BertSplitTest, RecordFilesAreNotDivided) {
  std::ofstream(path("a.tfrecord"), std::ios::binary) << "";
  config_.dialect = BertDialect::tfrecord;
  config_.names = {path("a.tfrecord")};
  config_.common.split_weights = {969, 30, 1};
  expect_error(ExitCode::deck, "data.split = 969,30,1: TFRecord files are not divided",
               [&] { open_bert_split(config_); });
  config_.common.split_weights = {1, 0, 0};
  expect_error(ExitCode::deck, "without a record", [&] { open_bert_split(config_); });
}

}  // namespace
}  // namespace trireme::data
