#include "data/bert/sample.hpp"

#include "bert/bert_samples.hpp"

namespace trireme::data {
namespace {

using PairSamplesTest = ScratchTest;

PairMapConfig map_config_of(const nlohmann::json& line) {
  PairMapConfig config{.documents = {line["documents"][0], line["documents"][1]},
                       .sequence = line["sequence"],
                       .short_probability = line["short"],
                       .pairs = line["pairs"],
                       .seed = line["seed"]};
  if (!line["samples"].is_null()) config.samples = line["samples"];
  return config;
}

TEST_F(PairSamplesTest, EqualTheReferenceOn200Corpora) {
  const auto lines = run_reference("pairs", folder_, 200);
  if (lines.empty()) GTEST_SKIP() << "/usr/bin/python3 has no numpy (Debian: python3-numpy)";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    SCOPED_TRACE(lines[i].dump().substr(0, 300));
    const auto dataset = std::make_shared<const IndexedDataset>(folder_ / std::to_string(i));
    const PairMapConfig config = map_config_of(lines[i]);
    const NpyArray map = build_pair_map(*dataset, config);
    std::vector<std::vector<std::int64_t>> rows;
    for (std::int64_t row = 0; row < map.rows(); ++row)
      rows.push_back({map(row, 0), map(row, 1), map(row, 2)});
    ASSERT_EQ(rows, lines[i]["map"].get<std::vector<std::vector<std::int64_t>>>());
    EXPECT_EQ(map.type(), IntegerType::uint32);
    EXPECT_TRUE(has_rows_of(map, summarize_pair_map(*dataset, config)));
    check_pair_map(map, *dataset, config, "map");

    const PairSamples samples(dataset, map, format_of(lines[i]), config.pairs, config.seed);
    for (std::size_t k = 0; k < lines[i]["read"].size(); ++k)
      expect_sample(read_sample(samples, static_cast<std::int64_t>(k)), lines[i]["read"][k]);
    if (HasFailure()) break;
  }
}

/// Documents of 1 .. 7 sentences of 3 .. 12 tokens.
class PairFilesTest : public ScratchTest {
 protected:
  PairFilesTest() {
    std::vector<std::int32_t> lengths;
    std::vector<std::int64_t> firsts = {0};
    for (int document = 0; document < 30; ++document) {
      for (int sentence = 0; sentence <= document % 7; ++sentence)
        lengths.push_back(3 + (document + 4 * sentence) % 10);
      firsts.push_back(std::ssize(lengths));
    }
    write(lengths, firsts, "text");
    config_.prefix = folder_ / "text";
    config_.split_weights = {8, 2};
    config_.samples = 100;
    config_.format = {.sequence = 24, .vocabulary = make_vocabulary(1000, 3)};
  }

  void write(const std::vector<std::int32_t>& lengths, const std::vector<std::int64_t>& firsts,
             const std::string& name) {
    write_dataset<std::uint16_t>(folder_ / name, lengths, TokenType::uint16, 10);
    IdxContent idx = make_idx(lengths, TokenType::uint16);
    idx.first_sequences = firsts;
    write_file_atomically(folder_ / (name + ".idx"), idx.bytes());
  }

  std::filesystem::path named() const {
    return folder_ / "text_train_indexmap_100mns_24msl_0.10ssp_1234s.npy";
  }

  std::vector<std::string> maps() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      if (entry.path().extension() == ".npy") names.push_back(entry.path().filename().string());
    return names;
  }

  PairSplitConfig config_;
};

TEST_F(PairFilesTest, WritesAndReadsMegatronsNames) {
  const auto built = open_pair_split(config_);
  EXPECT_EQ(maps(), std::vector<std::string>{named().filename().string()});
  EXPECT_EQ(read_file(named()), built->map().serialize());
  EXPECT_EQ(built->samples(), NpyArray::map(named()).rows());

  // A process that does not build finds the file; so does a later run, which leaves it as it is.
  const auto time = std::filesystem::last_write_time(named());
  const auto opened = open_pair_split(config_, {.builds = false});
  EXPECT_EQ(opened->map().serialize(), built->map().serialize());
  open_pair_split(config_);
  EXPECT_EQ(std::filesystem::last_write_time(named()), time);

  // Megatron-LM shuffles by its own seed in no other way, but any order of the rows will do.
  std::vector<std::uint32_t> rows;
  for (std::int64_t i = built->samples(); i-- > 0;)
    for (std::int64_t column = 0; column < 3; ++column)
      rows.push_back(static_cast<std::uint32_t>(built->map()(i, column)));
  const NpyArray reversed(rows, 3);
  write_file_atomically(named(), reversed.serialize());
  EXPECT_EQ(open_pair_split(config_)->map().serialize(), reversed.serialize());
  EXPECT_EQ(maps().size(), 1u);
}

TEST_F(PairFilesTest, LeavesMapsOfOtherRowsAsTheyAre) {
  const std::string pairs = open_pair_split(config_)->map().serialize();
  for (const bool sentences : {true, false}) {
    PairSplitConfig other = config_;
    if (sentences)
      other.pairs = false;
    else
      other.split_weights = {5, 5};
    const auto built = open_pair_split(other);
    EXPECT_NE(built->map().serialize(), pairs);
    EXPECT_EQ(open_pair_split(other, {.builds = false})->map().serialize(),
              built->map().serialize());
  }
  EXPECT_EQ(read_file(named()), pairs);
  EXPECT_EQ(maps().size(), 3u);
  // Also one that is no map at all.
  write_file_atomically(named(), "garbage");
  EXPECT_EQ(open_pair_split(config_)->map().serialize(), pairs);
  EXPECT_EQ(read_file(named()), "garbage");
}

TEST_F(PairFilesTest, TakesTheMapThatTheDeckNames) {
  PairSplitConfig other = config_;
  other.samples = 120;
  const auto map = open_pair_split(other)->map().serialize();
  config_.index_files = (folder_ / "text_train_indexmap_120mns_24msl_0.10ssp_1234s.npy").string();
  EXPECT_EQ(open_pair_split(config_)->map().serialize(), map);
  config_.samples = 100000;
  expect_error(ExitCode::data, "samples, the run takes 100000", [&] { open_pair_split(config_); });
  config_.samples = 100;
  config_.split_weights = {5, 5};
  expect_error(ExitCode::data, "expected the first and the end of at least 2 sentences",
               [&] { open_pair_split(config_); });
  config_.index_files = (folder_ / "none_train_indexmap_1mns.npy").string();
  expect_error(ExitCode::io, "none_train_indexmap_1mns.npy", [&] { open_pair_split(config_); });
}

TEST_F(PairFilesTest, RefusesWhatCannotBeSampled) {
  const auto expect_refused = [&](ExitCode code, const std::string& text, auto&& change) {
    PairSplitConfig config = config_;
    change(config);
    expect_error(code, text, [&] { open_pair_split(config); });
  };
  expect_refused(ExitCode::deck, "data.seed = 2147483647 is not between 0 and 2147483646",
                 [](auto& config) { config.seed = 2147483647; });
  expect_refused(ExitCode::deck, "model.sequence = 4 is too short for BERT",
                 [](auto& config) { config.format.sequence = 4; });
  expect_refused(ExitCode::deck, "data.bert.short_sequence = 1.5 is not between 0 and 1",
                 [](auto& config) { config.short_probability = 1.5; });
  expect_refused(ExitCode::deck, "data.bert.mask_probability = 0 is not between 0 and 1",
                 [](auto& config) { config.format.mask_probability = 0; });
  expect_refused(ExitCode::deck, "data.bert.max_ngram = 8 is not between 1 and 7",
                 [](auto& config) { config.format.max_ngram = 8; });
  expect_refused(ExitCode::deck, "data.bert.max_predictions = 0 is not at least 1",
                 [](auto& config) { config.format.max_predictions = 0; });
  expect_refused(ExitCode::deck, "the run takes 9000000000000000000 samples: their index",
                 [](auto& config) { config.samples = 9'000'000'000'000'000'000; });
  config_.format.vocabulary = make_vocabulary(100, 3);
  const auto samples = open_pair_split(config_);
  expect_error(ExitCode::data, "is outside the tokenizer's 100 ids", [&] {
    for (std::int64_t i = 0; i < samples->samples(); ++i) read_sample(*samples, i);
  });
}

// Megatron-LM's builder would not return.
TEST_F(PairFilesTest, RefusesASplitWithoutPairs) {
  write({5, 6, 700, 8, 9}, {0, 0, 1, 2, 4, 5}, "text");
  expect_error(ExitCode::deck,
               "none of the 4 documents (4 sentences) of the split can be a sample: 3 have fewer "
               "than 2 sentences, 1 have a sentence of more than 512 tokens",
               [&] { open_pair_split(config_); });
}

}  // namespace
}  // namespace trireme::data
