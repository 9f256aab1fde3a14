#include "data/indexed_dataset.hpp"

#include "dataset_files.hpp"

namespace trireme::data {
namespace {

class TokenScanTest : public ScratchTest {
 protected:
  /// A dataset of three documents of a million tokens, 7 each, but `value` at token `place`.
  IndexedDataset with(std::int64_t place, std::uint16_t value) {
    constexpr std::int32_t kLength = 1'000'000;
    std::vector<std::uint16_t> tokens(3 * kLength, 7);
    tokens[place] = value;
    write_file_atomically(folder_ / "d.bin",
                          {reinterpret_cast<const char*>(tokens.data()), 2 * tokens.size()});
    write_file_atomically(folder_ / "d.idx",
                          make_idx({kLength, kLength, kLength}, TokenType::uint16).bytes());
    return IndexedDataset(folder_ / "d");
  }
  static std::uint64_t hash(const IndexedDataset& dataset, TokenScan scan) {
    return hash_tokens(dataset, {0, dataset.sequences()}, scan);
  }
};

TEST_F(TokenScanTest, ASampleHasTheEndsAndAllHasEverything) {
  const IdRange ends = scan_ids(with(2'999'999, 900), TokenScan::sample);
  EXPECT_EQ(ends.smallest, 7);
  EXPECT_EQ(ends.largest, 900);
  EXPECT_EQ(ends.tokens, 128 * 8192);
  // Between two blocks of the sample.
  EXPECT_EQ(scan_ids(with(10'000, 900), TokenScan::sample).largest, 7);
  EXPECT_EQ(scan_ids(with(10'000, 900), TokenScan::all).largest, 900);
  EXPECT_EQ(scan_ids(with(10'000, 900), TokenScan::all).tokens, 3'000'000);
}

TEST_F(TokenScanTest, HashesTellTokensOfTheSameLengths) {
  const std::uint64_t sample = hash(with(0, 7), TokenScan::sample);
  const std::uint64_t all = hash(with(0, 7), TokenScan::all);
  EXPECT_EQ(hash(with(10'000, 8), TokenScan::sample), sample);
  EXPECT_NE(hash(with(10'000, 8), TokenScan::all), all);
  EXPECT_NE(hash(with(2'999'999, 8), TokenScan::sample), sample);
  // Of a part alone.
  const std::uint64_t middle = hash_tokens(with(0, 7), {1, 2}, TokenScan::all);
  EXPECT_EQ(hash_tokens(with(2'500'000, 8), {1, 2}, TokenScan::all), middle);
  EXPECT_NE(hash_tokens(with(1'500'000, 8), {1, 2}, TokenScan::all), middle);
}

TEST_F(TokenScanTest, ADatasetMayBeEmpty) {
  write_dataset<std::uint16_t>(folder_ / "e", {}, TokenType::uint16);
  EXPECT_EQ(scan_ids(IndexedDataset(folder_ / "e"), TokenScan::sample).largest, -1);
}

TEST_F(TokenScanTest, ARecordMustBeOfTheDataset) {
  write_dataset<std::uint16_t>(folder_ / "d", {3, 4}, TokenType::uint16);
  const IndexedDataset dataset(folder_ / "d");
  EXPECT_EQ(read_dataset_info(dataset), std::nullopt);
  tokenizer::DatasetInfo info{.tokenizer = {.type = "bytes", .vocab_size = 257},
                              .largest_id = 6,
                              .documents = 2,
                              .tokens = 7};
  write_file_atomically(folder_ / "d.json", to_json(info));
  EXPECT_EQ(read_dataset_info(dataset)->largest_id, 6);
  info.tokens = 8;
  write_file_atomically(folder_ / "d.json", to_json(info));
  expect_error(ExitCode::data, "d.json' describes a dataset of 2 documents and 8 tokens, but '",
               [&] { read_dataset_info(dataset); });
}

TEST_F(TokenScanTest, TokensThatWereCutAreNamed) {
  write_dataset<std::uint16_t>(folder_ / "d", {3, 4}, TokenType::uint16);
  const IndexedDataset dataset(folder_ / "d");
  dataset.require_unchanged();
  std::filesystem::resize_file(folder_ / "d.bin", 8);
  std::vector<std::int32_t> tokens(4);
  expect_error(ExitCode::io, "d.bin' ends at byte 8",
               [&] { dataset.read(1, 0, std::span(tokens)); });
  expect_error(ExitCode::io, "d.bin' has 8 bytes; it had 14", [&] { dataset.require_unchanged(); });
}

}  // namespace
}  // namespace trireme::data
