#include "data/gpt/gpt_dataset.hpp"

#include <fstream>

#include "dataset_files.hpp"

namespace trireme::data {
namespace {

class GptSplitTest : public ScratchTest {
 protected:
  void SetUp() override {
    for (const char* name : {"a.bin", "a.idx"})
      std::filesystem::copy_file(golden("megatron") / name, folder_ / name);
    // 18 of 23 documents: the goldens' part.
    config_ = {.prefix = folder_ / "a",
               .split_weights = {18, 3, 2},
               .samples = 75,
               .format = {.sequence = 16, .vocab = 64}};
  }
  std::string bytes_of(const std::string& name) {
    return read_file(golden("megatron/gpt_sep_final_" + name + "_index.npy"));
  }
  std::vector<std::filesystem::path> cached() {
    std::vector<std::filesystem::path> files;
    for (const auto& entry :
         std::filesystem::directory_iterator(default_index_cache(config_.prefix)))
      files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    return files;
  }
  // The golden indices under the names that Megatron-LM gave them.
  std::string copy_indexmap(const std::string& part) {
    const std::string stem = (folder_ / ("a_" + part + "_indexmap_75ns_16sl_1234s")).string();
    write_file_atomically(stem + "_doc_idx.npy", bytes_of("document"));
    write_file_atomically(stem + "_sample_idx.npy", bytes_of("sample"));
    write_file_atomically(stem + "_shuffle_idx.npy", bytes_of("shuffle"));
    return stem;
  }
  GptSplitConfig config_;
};

TEST_F(GptSplitTest, TheBuilderWritesAndTheOthersWait) {
  int barriers = 0;
  const GptCorpus built = open_gpt_split(config_, {.builds = true, .barrier = [&] { ++barriers; }});
  const auto files = cached();
  ASSERT_EQ(files.size(), 4u);  // three arrays and their description
  EXPECT_NE(files[0].string().find("-train-75samples-16sequence-1234seed-description.txt"),
            std::string::npos);
  EXPECT_EQ(read_file(files[1]), bytes_of("document"));
  EXPECT_EQ(read_file(files[2]), bytes_of("sample"));
  EXPECT_EQ(read_file(files[3]), bytes_of("shuffle"));

  const GptCorpus mapped =
      open_gpt_split(config_, {.builds = false, .barrier = [&] { ++barriers; }});
  EXPECT_EQ(barriers, 2);
  EXPECT_EQ(mapped.tokens->tokens(), built.tokens->tokens());
  EXPECT_EQ(mapped.index.document.serialize(), built.index.document.serialize());
  EXPECT_EQ(mapped.index.sample.serialize(), built.index.sample.serialize());
  EXPECT_EQ(mapped.index.shuffle.serialize(), built.index.shuffle.serialize());
}

TEST_F(GptSplitTest, OnlyTheBuilderBuilds) {
  expect_error(ExitCode::io, "document_index.npy': No such file",
               [&] { open_gpt_split(config_, {.builds = false}); });
}

TEST_F(GptSplitTest, TheCacheIsUsedAndRepaired) {
  open_gpt_split(config_);
  const auto files = cached();
  const auto written = std::filesystem::last_write_time(files[1]);
  open_gpt_split(config_);
  EXPECT_EQ(std::filesystem::last_write_time(files[1]), written);
  // A damaged file is made again; so are the indices of a dataset that changed under its name.
  std::filesystem::resize_file(files[2], 100);
  EXPECT_EQ(open_gpt_split(config_).index.sample.serialize(), bytes_of("sample"));
  EXPECT_EQ(read_file(files[2]), bytes_of("sample"));
  // Sound indices of another number of samples, under the names of ours.
  GptSplitConfig longer = config_;
  longer.samples = 500;
  longer.index_cache = folder_ / "longer";
  const GptIndex foreign = open_gpt_split(longer).index;
  write_file_atomically(files[1], foreign.document.serialize());
  write_file_atomically(files[2], foreign.sample.serialize());
  write_file_atomically(files[3], foreign.shuffle.serialize());
  EXPECT_EQ(open_gpt_split(config_).index.document.serialize(), bytes_of("document"));
  write_dataset<std::uint16_t>(folder_ / "a", {40, 50, 60}, TokenType::uint16);
  config_.format.vocab = 200;
  EXPECT_EQ(open_gpt_split(config_).index.document.rows() % 2, 0);
  EXPECT_EQ(cached().size(), 8u);
}

TEST_F(GptSplitTest, AnUnwritableCacheNamesItsKey) {
  std::ofstream(folder_ / "file") << "x";
  config_.index_cache = folder_ / "file" / "cache";
  expect_error(ExitCode::io, "name a folder that can be written in data.index_cache",
               [&] { open_gpt_split(config_); });
  config_.index_cache = folder_ / "elsewhere";
  open_gpt_split(config_);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "elsewhere"));
  EXPECT_FALSE(std::filesystem::exists(default_index_cache(config_.prefix)));
}

TEST_F(GptSplitTest, NamedIndexFilesServeTheirPart) {
  const std::string stem = copy_indexmap("train");
  config_.index_files = stem;
  config_.seed = 99;  // an index built now would differ
  const GptCorpus corpus = open_gpt_split(config_);
  EXPECT_EQ(corpus.index.shuffle.serialize(), bytes_of("shuffle"));
  config_.samples = 1;
  EXPECT_EQ(summarize_split(config_).samples, corpus.index.samples());
  EXPECT_FALSE(std::filesystem::exists(default_index_cache(config_.prefix)));
  // The other parts are built; a list and a whole file name do as well.
  config_.split = Split::valid;
  config_.samples = 2;
  open_gpt_split(config_);
  EXPECT_EQ(cached().size(), 4u);
  EXPECT_EQ(indexmap_stem(stem + ", " + stem + "_doc_idx.npy", Split::train), stem);
  EXPECT_EQ(indexmap_stem("b_valid_indexmap_1ns,b_test_indexmap_2ns", Split::test),
            "b_test_indexmap_2ns");
  EXPECT_EQ(indexmap_stem("", Split::test), std::nullopt);
}

TEST_F(GptSplitTest, WrongIndexFilesAreNamed) {
  const std::string stem = copy_indexmap("train");
  config_.index_files = (folder_ / "a_indices").string();
  expect_error(ExitCode::deck, "a_indices' names no part", [&] { open_gpt_split(config_); });
  expect_error(ExitCode::deck, "a_indices' names no part", [&] { summarize_split(config_); });
  config_.index_files = stem + "," + stem + "_v2";
  expect_error(ExitCode::deck, "are for train", [&] { open_gpt_split(config_); });
  config_.index_files = stem;
  config_.samples = 88;
  expect_error(ExitCode::data, "holds 87 samples, the run takes 88 for train",
               [&] { open_gpt_split(config_); });
  config_.samples = 75;
  config_.format.sequence = 15;
  expect_error(ExitCode::data, stem + "': row 1 of the sample index is",
               [&] { open_gpt_split(config_); });
  config_.format.sequence = 16;
  std::filesystem::remove(stem + "_sample_idx.npy");
  expect_error(ExitCode::io, "_sample_idx.npy': No such file", [&] { open_gpt_split(config_); });
  expect_error(ExitCode::io, "_sample_idx.npy': No such file", [&] { summarize_split(config_); });
}

TEST_F(GptSplitTest, SummariesNameDocumentsTokensAndEpochs) {
  const SplitSummary train = summarize_split(config_);
  EXPECT_EQ(train.documents, (SequenceRange{0, 18}));
  EXPECT_EQ(train.tokens, 350);
  EXPECT_EQ(train.epochs, 4);
  EXPECT_EQ(train.samples, 87);
  require_samples(config_, train);
}

TEST_F(GptSplitTest, AnIndexLargerThanMemoryIsRefusedBeforeItIsBuilt) {
  config_.samples = std::int64_t{1} << 50;
  const SplitSummary summary = summarize_split(config_);
  EXPECT_GT(summary.index_bytes, 1e15);
  const std::string text =
      fmt::format("which is {} epochs of 18 documents: their index is", summary.epochs);
  expect_error(ExitCode::deck, text, [&] { require_samples(config_, summary); });
  expect_error(ExitCode::deck, text, [&] { open_gpt_split(config_); });
}

TEST_F(GptSplitTest, APartThatIsTooSmallIsNamed) {
  write_dataset<std::uint16_t>(folder_ / "e", {40, 10, 0, 0}, TokenType::uint16);
  config_ = {.prefix = folder_ / "e",
             .split_weights = {2, 2, 0},
             .split = Split::valid,
             .samples = 5,
             .format = {.sequence = 16, .vocab = 64}};
  const std::string text =
      "e' is too small for one sample of 17 tokens: data.split = 2,2,0 gives it 2 documents with 0 "
      "tokens, and no number of epochs changes that; give it more weight or more data";
  expect_error(ExitCode::deck, text, [&] { open_gpt_split(config_); });
  expect_error(ExitCode::deck, "the valid part of", [&] { build_split_index(config_); });
  EXPECT_EQ(summarize_split(config_).epochs, 0);
  config_.split = Split::test;
  expect_error(ExitCode::deck, "gives it 0 documents with 0 tokens",
               [&] { open_gpt_split(config_); });
  // Ten tokens give no sample in one epoch, but do when repeated, as Megatron-LM repeats them.
  config_.split_weights = {1, 1, 2};
  config_.split = Split::valid;
  EXPECT_EQ(summarize_split(config_).epochs, 9);
  config_.samples.reset();
  expect_error(ExitCode::deck, "with 10 tokens, and 1 epoch holds none",
               [&] { open_gpt_split(config_); });
}

TEST_F(GptSplitTest, SeedsAreNumpys) {
  config_.seed = 4294967296;
  expect_error(ExitCode::deck, "data.seed = 4294967296 is not between 0 and 4294967295",
               [&] { open_gpt_split(config_); });
  config_.seed = -1;
  expect_error(ExitCode::deck, "data.seed = -1", [&] { build_split_index(config_); });
}

}  // namespace
}  // namespace trireme::data
