#include "data/indexed_dataset.hpp"

#include <map>
#include <sstream>

#include "../message_of.hpp"
#include "dataset_files.hpp"
#include "tokenizer/preprocess/preprocess.hpp"

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

class SplitLinesTest : public ScratchTest {
 protected:
  void SetUp() override {
    ScratchTest::SetUp();
    std::string first, second;
    for (int i = 0; i < 60; ++i) first += line(i) + "\n";
    for (int i = 60; i < 100; ++i) second += line(i) + (i < 99 ? "\r\n" : "");
    write_file_atomically(folder_ / "a.jsonl", first);
    write_file_atomically(folder_ / "b.jsonl", second);
    options_ = {.inputs = {path("a.jsonl"), path("b.jsonl")},
                .folder = folder_ / "out",
                .fractions = {0.8, 0.15, 0.05}};
  }
  static std::string line(int i) { return fmt::format("{{\"text\": \"line {}\"}}", i); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::vector<std::string> lines_of(const std::string& name) {
    std::istringstream text(read_file(folder_ / "out" / name));
    std::vector<std::string> lines;
    for (std::string each; std::getline(text, each);) lines.push_back(each);
    return lines;
  }
  LineSplitOptions options_;
};

TEST_F(SplitLinesTest, EveryLineGoesToOneFileAndSaysWhereItWas) {
  EXPECT_EQ(split_lines(options_), (LineCounts{80, 15, 5}));
  std::map<std::string, int> seen;
  for (const auto& [part, count] : {std::pair{"train", 80u}, {"valid", 15u}, {"test", 5u}}) {
    const auto lines = lines_of(std::string(part) + ".jsonl");
    const auto places = lines_of(std::string(part) + ".lines");
    ASSERT_EQ(lines.size(), count);
    ASSERT_EQ(places.size(), count);
    for (std::size_t i = 0; i < count; ++i) {
      ++seen[lines[i]];
      const std::size_t colon = places[i].rfind(':');
      const int number = std::stoi(places[i].substr(colon + 1)) - 1;
      const bool first = places[i].substr(0, colon) == path("a.jsonl");
      EXPECT_EQ(lines[i], line(first ? number : 60 + number));
    }
  }
  EXPECT_EQ(seen.size(), 100u);
}

TEST_F(SplitLinesTest, TheSeedDecides) {
  split_lines(options_);
  const auto test = lines_of("test.jsonl");
  // Where numpy.random.RandomState(1234).shuffle(a) leaves 2 in a = [0] * 80 + [1] * 15 + [2] * 5.
  EXPECT_EQ(test, (std::vector<std::string>{line(4), line(16), line(76), line(79), line(81)}));
  split_lines(options_);
  EXPECT_EQ(lines_of("test.jsonl"), test);
  options_.seed = 5;
  split_lines(options_);
  EXPECT_NE(lines_of("test.jsonl"), test);
}

TEST_F(SplitLinesTest, CountsCarryWhatIsLeftOver) {
  EXPECT_EQ(count_split(10, {1, 1, 1}), (LineCounts{3, 3, 4}));
  EXPECT_EQ(count_split(7, {0.95, 0.05}), (LineCounts{6, 1, 0}));
  EXPECT_EQ(count_split(7, {5}), (LineCounts{7, 0, 0}));
  EXPECT_EQ(count_split(100, {0.7, 0.2, 0.1}), (LineCounts{70, 20, 10}));
  for (std::int64_t lines = 0; lines < 300; ++lines) {
    const LineCounts counts = count_split(lines, {0.1, 0.7, 0.2});
    EXPECT_EQ(counts[0] + counts[1] + counts[2], lines);
    EXPECT_NEAR(static_cast<double>(counts[1]), 0.7 * static_cast<double>(lines), 1.0 + 1e-9);
  }
}

TEST_F(SplitLinesTest, APartOfNothingIsNotWritten) {
  options_.fractions = {9, 1};
  EXPECT_EQ(split_lines(options_), (LineCounts{90, 10, 0}));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "out/valid.jsonl"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/test.jsonl"));
}

TEST_F(SplitLinesTest, OutputsThatAreThereForAnotherReasonAreKept) {
  split_lines(options_);
  const std::string train = read_file(folder_ / "out/train.jsonl");
  options_.fractions = {9, 1};
  expect_error(ExitCode::usage, "out/test.jsonl' is of another split, this one has no such part",
               [&] { split_lines(options_); });
  options_.inputs = {path("out/train.jsonl")};
  options_.folder = folder_ / "out" / ".";
  expect_error(ExitCode::usage, "out/./train.jsonl' is one of the inputs; name another folder",
               [&] { split_lines(options_); });
  EXPECT_EQ(read_file(folder_ / "out/train.jsonl"), train);
}

TEST_F(SplitLinesTest, BadInputIsNamedAndNothingIsWritten) {
  const auto refuse = [&](ExitCode code, const std::string& text, const LineSplitOptions& options) {
    expect_error(code, text, [&] { split_lines(options); });
    EXPECT_FALSE(std::filesystem::exists(folder_ / "out/train.jsonl"));
  };
  LineSplitOptions bad = options_;
  bad.inputs.push_back("-");
  refuse(ExitCode::usage,
         "split reads the input more than once: standard input is not a regular file", bad);
  bad.inputs.back() = "/dev/null";
  refuse(ExitCode::usage, "split reads the input more than once: '/dev/null' is not a regular file",
         bad);
  bad = options_;
  bad.seed = -1;
  refuse(ExitCode::usage, "--seed -1 is not between 0 and 4294967295", bad);
  for (const auto& fractions :
       std::vector<std::vector<double>>{{}, {0, 0}, {1, -1}, {1, 1, 1, 1}}) {
    bad = options_;
    bad.fractions = fractions;
    refuse(ExitCode::usage, "expected those of train, valid and test, such as 0.95,0.04,0.01", bad);
  }
  bad = options_;
  bad.fractions = {0.999, 0.0005, 0.0005};
  refuse(ExitCode::data, "100 lines are too few for 3 parts: valid gets none", bad);
  for (const char* wrong : {"[1]", "\"text\"", "", "{\"text\": 1", "plain"}) {
    write_file_atomically(folder_ / "b.jsonl", line(1) + "\n" + wrong + "\n");
    refuse(ExitCode::data, path("b.jsonl") + ":2: not a JSON object on a line", options_);
  }
}

TEST_F(MergeTest, ArraysOfIdsBecomeADatasetAndBack) {
  const auto save = [&](const std::string& name, const NpyArray& array) {
    write_file_atomically(folder_ / name, array.serialize());
    return folder_ / name;
  };
  const auto flat = save("flat.npy", NpyArray(std::vector<std::int32_t>{5, 6, 1, 7, 1, 8}));
  const auto rows =
      save("rows.npy", NpyArray(std::vector<std::int64_t>{2, 3, 0, 4, 0, 0, 0, 0, 0}, 3));
  ArrayImport work{{flat, rows}, folder_ / "ids", 1000, 1, 0};
  const ArraySummary summary = import_arrays(work);
  EXPECT_EQ(summary.documents, 5);
  EXPECT_EQ(summary.tokens, 9);
  write_documents("whole", {{{5, 6, 1}}, {{7, 1}}, {{8}}, {{2, 3}}, {{4}}});
  EXPECT_EQ(bytes_of("ids.bin"), bytes_of("whole.bin"));
  EXPECT_EQ(bytes_of("ids.idx"), bytes_of("whole.idx"));

  EXPECT_EQ(export_array(folder_ / "ids", folder_ / "back.npy").tokens, 9);
  const NpyArray back = NpyArray::map(folder_ / "back.npy");
  ASSERT_EQ(back.rows(), 9);
  EXPECT_EQ(back(0), 5);
  EXPECT_EQ(back(8), 4);
  // numpy's uint16, in which small vocabularies are often kept.
  std::string bytes = NpyArray(std::vector<std::int16_t>{-1, 3}).serialize();
  bytes.replace(bytes.find("<i2"), 3, "<u2");
  write_file_atomically(folder_ / "u2.npy", bytes);
  EXPECT_EQ(NpyArray::map(folder_ / "u2.npy")(0), 65535);

  for (auto ArrayImport::*option : {&ArrayImport::eod, &ArrayImport::pad})
    for (const std::int32_t id : {-1, 1000}) {
      ArrayImport bad = work;
      bad.*option = id;
      EXPECT_EQ(message_of<UsageError>([&] { import_arrays(bad); }),
                fmt::format("--{} {}: expected an id of the vocabulary, 0 to 999",
                            option == &ArrayImport::eod ? "eod" : "pad", id));
    }
  work.vocab_size = 8;
  EXPECT_EQ(message_of<DataError>([&] { import_arrays(work); }),
            fmt::format("'{}': id 8 at 5 is outside the vocabulary of 8 ids", flat.string()));
  work.inputs = {rows};
  EXPECT_EQ(message_of<UsageError>([&] { import_arrays(work); }),
            "--eod is for arrays of one axis: each row of two axes is a document");
  ArrayImport flat_only = work;
  flat_only.inputs = {flat};
  EXPECT_EQ(message_of<UsageError>([&] { import_arrays(flat_only); }),
            "--pad is for arrays of two axes: --eod ends the documents of one axis");
  work.eod.reset();
  work.vocab_size = 4;
  EXPECT_EQ(message_of<DataError>([&] { import_arrays(work); }),
            fmt::format("'{}': id 4 at [1, 0] is outside the vocabulary of 4 ids", rows.string()));
  work.vocab_size = 0;
  EXPECT_EQ(message_of<UsageError>([&] { import_arrays(work); }),
            "the number of ids of the vocabulary is needed: --vocab-size N");
}

}  // namespace
}  // namespace trireme::data
