#include "data/prepare/merge.hpp"

#include "dataset_files.hpp"
#include "tokenizer/preprocess/dataset.hpp"

namespace trireme::data {
namespace {

class MergeTest : public ScratchTest {
 protected:
  // A dataset of documents of sentences.
  void write_documents(const std::string& name,
                       const std::vector<std::vector<std::vector<std::int32_t>>>& documents) {
    tokenizer::DatasetWriter writer(folder_ / name, 1000);
    for (const auto& document : documents) {
      for (const auto& sentence : document) writer.add_sequence(sentence);
      writer.end_document();
    }
    writer.finish();
  }
  std::string bytes_of(const std::string& name) { return read_file(folder_ / name); }
};

TEST_F(MergeTest, IsWhatOneWriterHadWritten) {
  write_documents("a", {{{1, 2}, {3}}, {}, {{4, 5, 6}}});
  write_documents("b", {{{7}}});
  write_documents("c", {});
  write_documents("whole", {{{7}}, {{1, 2}, {3}}, {}, {{4, 5, 6}}, {{7}}});
  const MergeSummary summary = merge_datasets(
      {folder_ / "b.idx", folder_ / "a", folder_ / "c", folder_ / "b"}, folder_ / "new/all.bin");
  EXPECT_EQ(summary.documents, 5);
  EXPECT_EQ(summary.sequences, 5);
  EXPECT_EQ(summary.tokens, 8);
  EXPECT_EQ(bytes_of("new/all.bin"), bytes_of("whole.bin"));
  EXPECT_EQ(bytes_of("new/all.idx"), bytes_of("whole.idx"));
}

TEST_F(MergeTest, OneDatasetIsCopiedByteForByte) {
  merge_datasets({golden("megatron/a")}, folder_ / "a");
  EXPECT_EQ(bytes_of("a.bin"), read_file(golden("megatron/a.bin")));
  EXPECT_EQ(bytes_of("a.idx"), read_file(golden("megatron/a.idx")));
}

TEST_F(MergeTest, EveryElementTypeIsKept) {
  for (const auto type : {TokenType::int64, TokenType::uint8, TokenType::float64}) {
    const std::string bin(3 * size_of(type), '\1');
    write_file_atomically(folder_ / "t.bin", bin);
    write_file_atomically(folder_ / "t.idx", make_idx({1, 2}, type).bytes());
    merge_datasets({folder_ / "t", folder_ / "t"}, folder_ / "both");
    EXPECT_EQ(IndexedDataset(folder_ / "both").type(), type);
    EXPECT_EQ(bytes_of("both.bin"), bin + bin);
    EXPECT_EQ(bytes_of("both.idx"), make_idx({1, 2, 1, 2}, type).bytes());
  }
}

TEST_F(MergeTest, KeepsTheRecordOfItsInputs) {
  const auto write_recorded = [&](const std::string& name, std::int32_t id, std::uint64_t hash,
                                  bool append_eod) {
    tokenizer::DatasetWriter writer(folder_ / name, 1000);
    writer.add_document(std::vector<std::int32_t>{id, 2});
    writer.finish(tokenizer::DatasetInfo{
        .tokenizer = {.type = "gpt2", .hash = hash, .vocab_size = 1000},
        .largest_id = writer.largest_id(),
        .documents = 1,
        .tokens = 2,
        .options = tokenizer::DatasetInfo::Options{.key = "text", .append_eod = append_eod}});
  };
  write_recorded("a", 5, 1, true);
  write_recorded("b", 900, 1, true);
  EXPECT_EQ(merge_datasets({folder_ / "a", folder_ / "b"}, folder_ / "ab").without_info,
            std::nullopt);
  const auto merged = tokenizer::read_dataset_info(folder_ / "ab");
  ASSERT_TRUE(merged);
  EXPECT_EQ(merged->tokenizer.hash, 1u);
  EXPECT_EQ(merged->largest_id, 900);
  EXPECT_EQ(merged->documents, 2u);
  EXPECT_EQ(merged->tokens, 4u);
  EXPECT_TRUE(merged->options->append_eod);

  write_recorded("unlike", 5, 1, false);
  merge_datasets({folder_ / "a", folder_ / "unlike"}, folder_ / "ab");
  EXPECT_EQ(tokenizer::read_dataset_info(folder_ / "ab")->options, std::nullopt);
  write_documents("plain", {{{1}}});
  EXPECT_EQ(merge_datasets({folder_ / "a", folder_ / "plain"}, folder_ / "ab").without_info,
            folder_ / "plain");
  EXPECT_EQ(tokenizer::read_dataset_info(folder_ / "ab"), std::nullopt);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "ab.json")) << "that of an older dataset";

  write_recorded("other", 5, 2, true);
  expect_error(ExitCode::data,
               "other' holds ids of gpt2 of 1000 ids (hash 0000000000000002), '" +
                   (folder_ / "a").string() +
                   "' of gpt2 of 1000 ids (hash 0000000000000001): datasets of one tokenizer can "
                   "be merged",
               [&] {
                 merge_datasets({folder_ / "a", folder_ / "other"}, folder_ / "out");
               });
  write_file_atomically(folder_ / "corpus.json", "{\"text\": \"a\"}\n");
  expect_error(ExitCode::usage, "corpus.json', which is another file; name another output",
               [&] { merge_datasets({folder_ / "a"}, folder_ / "corpus"); });
}

TEST_F(MergeTest, RefusesWhatDoesNotFitAndLeavesNothing) {
  write_documents("a", {{{1, 2}}});
  write_dataset<std::int32_t>(folder_ / "wide", {3}, TokenType::int32);
  const auto refuse = [&](ExitCode code, const std::string& text,
                          const std::vector<std::filesystem::path>& inputs,
                          const std::string& output) {
    expect_error(code, text, [&] { merge_datasets(inputs, folder_ / output); });
    EXPECT_FALSE(std::filesystem::exists(folder_ / "out.bin"));
    EXPECT_FALSE(std::filesystem::exists(folder_ / "out.bin.part"));
  };
  refuse(ExitCode::data,
         "wide' holds int32, '" + (folder_ / "a").string() +
             "' holds uint16: datasets of one type can be merged",
         {folder_ / "a", folder_ / "wide"}, "out");
  refuse(ExitCode::usage, "a' is one of the inputs; name another", {folder_ / "a"}, "./a.idx");
  refuse(ExitCode::usage, "name the datasets to merge", {}, "out");
  for (const char* folder : {"", ".", "new/", ".."})
    refuse(ExitCode::usage, "' is a folder; name a dataset in it, such as '", {folder_ / "a"},
           folder);
  refuse(ExitCode::io, "absent.idx': No such file", {folder_ / "absent"}, "out");
  write_file_atomically(folder_ / "wide.idx", make_idx({3}, TokenType::int32).bytes() + "\1");
  refuse(ExitCode::data, "wide' has the modes of a multimodal dataset, which a merge would lose",
         {folder_ / "wide"}, "out");
  std::filesystem::resize_file(folder_ / "a.bin", 3);
  refuse(ExitCode::data, "a.bin", {folder_ / "a"}, "out");
}

}  // namespace
}  // namespace trireme::data
