#include "data/prepare/merge.hpp"

#include "dataset_files.hpp"
#include "tokenizer/preprocess/dataset_writer.hpp"

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
