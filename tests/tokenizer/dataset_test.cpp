#include "tokenizer/preprocess/preprocess.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "fixture.hpp"

namespace trireme::tokenizer {
namespace {

template <typename T>
std::vector<T> array_at(const std::string& bytes, std::size_t offset, std::size_t count) {
  std::vector<T> values(count);
  EXPECT_LE(offset + count * sizeof(T), bytes.size());
  std::memcpy(values.data(), bytes.data() + offset, count * sizeof(T));
  return values;
}

class DatasetWriterTest : public FolderTest {
 protected:
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }
};

TEST_F(DatasetWriterTest, EqualsMegatronByteForByte) {
  const std::string bin = read_file(test_data("megatron/a.bin"));
  const std::string idx = read_file(test_data("megatron/a.idx"));
  const auto sequences = array_at<std::uint64_t>(idx, 18, 1)[0];
  ASSERT_EQ(sequences, 23u);
  DatasetWriter writer(folder_ / "a", 50257);
  std::size_t offset = 0;
  for (const std::int32_t length : array_at<std::int32_t>(idx, 34, sequences)) {
    const auto tokens = array_at<std::uint16_t>(bin, offset, static_cast<std::size_t>(length));
    writer.add_document(std::vector<std::int32_t>(tokens.begin(), tokens.end()));
    offset += tokens.size() * 2;
  }
  ASSERT_EQ(offset, bin.size());
  writer.finish();
  EXPECT_EQ(read_file(folder_ / "a.bin"), bin);
  EXPECT_EQ(read_file(folder_ / "a.idx"), idx);
  EXPECT_EQ(files(), (std::vector<std::string>{"a.bin", "a.idx"}));
}

TEST_F(DatasetWriterTest, LargeVocabulariesTakeFourBytes) {
  for (const auto& [vocab_size, code, bytes] :
       {std::tuple{65499, 8, 2u}, std::tuple{65500, 4, 4u}}) {
    DatasetWriter writer(folder_ / "a", vocab_size);
    writer.add_document(std::vector<std::int32_t>{65498, 7, 65497});
    writer.finish();
    EXPECT_EQ(read_file(folder_ / "a.idx")[17], code);
    const std::string tokens = read_file(folder_ / "a.bin");
    ASSERT_EQ(tokens.size(), 3 * bytes);
    if (bytes == 4) {
      EXPECT_EQ(array_at<std::int32_t>(tokens, 0, 3), (std::vector{65498, 7, 65497}));
    }
  }
}

TEST_F(DatasetWriterTest, EmptyDocumentsAreDocumentsWithoutSequence) {
  DatasetWriter writer(folder_ / "a", 100);
  for (const std::vector<std::int32_t>& ids : {std::vector{1, 2}, {}, {3}, {}})
    writer.add_document(ids);
  writer.finish();
  const std::string idx = read_file(folder_ / "a.idx");
  EXPECT_EQ(array_at<std::uint64_t>(idx, 18, 2), (std::vector<std::uint64_t>{2, 5}));
  EXPECT_EQ(array_at<std::int32_t>(idx, 34, 2), (std::vector{2, 1}));
  EXPECT_EQ(array_at<std::int64_t>(idx, 42, 2), (std::vector<std::int64_t>{0, 4}));
  EXPECT_EQ(array_at<std::int64_t>(idx, 58, 5), (std::vector<std::int64_t>{0, 1, 1, 2, 2}));
  EXPECT_EQ(idx.size(), 98u);
}

TEST_F(DatasetWriterTest, WithoutFinishNothingIsLeftAndTheOldStays) {
  {
    DatasetWriter writer(folder_ / "deep" / "a", 100);
    writer.add_document(std::vector<std::int32_t>(100000, 1));
    EXPECT_FALSE(std::filesystem::exists(folder_ / "deep" / "a.bin"));
    EXPECT_FALSE(std::filesystem::exists(folder_ / "deep" / "a.idx"));
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "deep"));
  write("a.bin", "old");
  write("a.idx", "older");
  { DatasetWriter(folder_ / "a", 100).add_document(std::vector<std::int32_t>{1}); }
  EXPECT_EQ(read_file(folder_ / "a.bin"), "old");
  EXPECT_EQ(read_file(folder_ / "a.idx"), "older");
  EXPECT_EQ(files(), (std::vector<std::string>{"a.bin", "a.idx"}));
}

TEST_F(DatasetWriterTest, LengthsThatTheFormatCannotHoldAreRefused) {
  constexpr std::size_t kTooLong = std::size_t{1} << 31;
  DatasetWriter writer(folder_ / "a", {.code = 1, .bytes = 1});
  // Nothing of such a sequence is read.
  const std::byte first{};
  EXPECT_EQ(message_of<DataError>([&] {
              writer.add_elements({&first, kTooLong});
            }),
            fmt::format("'{}': a document of {} tokens is too long: the format counts to 2^31 - 1",
                        (folder_ / "a.idx").string(), kTooLong));
}

TEST_F(DatasetWriterTest, OneProgramWritesADatasetAtATime) {
  const std::vector<std::int32_t> ids = {1, 2, 3};
  DatasetWriter first(folder_ / "a", 100);
  first.add_document(ids);
  const std::string taken =
      fmt::format("'{}' is being written by another program; wait for it, or name another output",
                  (folder_ / "a.bin.part").string());
  EXPECT_EQ(message_of<IoError>([&] { DatasetWriter(folder_ / "a", 100); }), taken);
  first.finish();
  EXPECT_EQ(read_file(folder_ / "a.bin"), std::string("\1\0\2\0\3\0", 6));
  EXPECT_EQ(files(), (std::vector<std::string>{"a.bin", "a.idx"}));
}

TEST_F(DatasetWriterTest, WhatAKilledProgramLeftIsTakenOver) {
  write("a.bin.part", "the beginning of an older dataset");
  write("a.idx.part", "");
  DatasetWriter writer(folder_ / "a", 100);
  writer.add_document(std::vector<std::int32_t>{7});
  writer.finish();
  EXPECT_EQ(read_file(folder_ / "a.bin"), std::string("\7\0", 2));
  EXPECT_EQ(files(), (std::vector<std::string>{"a.bin", "a.idx"}));
}

TEST_F(DatasetWriterTest, APartReplacesNoDevice) {
  const std::filesystem::path fifo = folder_ / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(message_of<IoError>([&] { PartFile part(fifo); }),
            "cannot write '" + fifo.string() + "': it is a device or a FIFO; name a file");
  EXPECT_EQ(files(), std::vector<std::string>{"fifo"});
}

TEST_F(DatasetWriterTest, SystemErrorsNameTheFile) {
  const std::string file = write("file", "");
  const std::string message = message_of<IoError>([&] { DatasetWriter(file + "/a", 100); });
  EXPECT_EQ(message.find("cannot create "), 0u) << message;
  EXPECT_NE(message.find(file), std::string::npos) << message;
  if (std::filesystem::exists("/dev/full")) {
    std::filesystem::create_symlink("/dev/full", folder_ / "full.bin.part");
    DatasetWriter writer(folder_ / "full", 100);
    const auto fill = [&] {
      writer.add_document(std::vector<std::int32_t>(100000, 1));
      writer.finish();
    };
    EXPECT_NE(message_of<IoError>(fill).find("full.bin.part': No space left on device"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace trireme::tokenizer
