#include "data/indexed_dataset.hpp"

#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "dataset_files.hpp"

namespace trireme::data {
namespace {

class IndexedDatasetTest : public ScratchTest {
 protected:
  // Writes `idx` next to a .bin file of `bin_bytes` and expects opening to fail with `text`.
  void expect_refused(const std::string& idx, std::size_t bin_bytes, const std::string& text) {
    write_file_atomically(folder_ / "d.idx", idx);
    write_file_atomically(folder_ / "d.bin", std::string(bin_bytes, '\1'));
    expect_error(ExitCode::data, text, [&] { IndexedDataset{folder_ / "d"}; });
  }
};

TEST_F(IndexedDatasetTest, ReadsMegatronsFile) {
  const auto expected = nlohmann::json::parse(read_file(golden("megatron/golden.json")));
  const IndexedDataset dataset(golden("megatron/a"));
  EXPECT_EQ(dataset.type(), TokenType::uint16);
  EXPECT_EQ(dataset.documents(), 23);
  EXPECT_EQ(dataset.lengths(), expected["a.sequence_lengths"].get<std::vector<std::int32_t>>());
  EXPECT_EQ(dataset.tokens(), 461);
  EXPECT_EQ(dataset.document_of(22), 22);
  std::vector<std::int32_t> tokens(13);
  dataset.read<std::int32_t>(1, 0, tokens);
  std::uint16_t raw[15];
  std::memcpy(raw, read_file(golden("megatron/a.bin")).data(), sizeof raw);
  EXPECT_EQ(tokens, std::vector<std::int32_t>(raw + 2, raw + 15));
}

template <typename T>
void expect_readable(const std::filesystem::path& prefix, TokenType type, T first, T step) {
  write_dataset<T>(prefix, {2, 0, 3}, type, first, step);
  const IndexedDataset dataset(prefix);
  EXPECT_EQ(dataset.type(), type);
  std::vector<std::int64_t> tokens(2);
  dataset.read<std::int64_t>(2, 1, tokens);
  EXPECT_EQ(tokens[0], static_cast<std::int64_t>(first + 3 * step)) << name_of(type);
  EXPECT_EQ(tokens[1], static_cast<std::int64_t>(first + 4 * step)) << name_of(type);
}

TEST_F(IndexedDatasetTest, ReadsEveryElementType) {
  const auto prefix = folder_ / "d";
  expect_readable<std::uint8_t>(prefix, TokenType::uint8, 200, 1);
  expect_readable<std::int8_t>(prefix, TokenType::int8, 100, 1);
  expect_readable<std::int16_t>(prefix, TokenType::int16, 32000, 1);
  expect_readable<std::int32_t>(prefix, TokenType::int32, 2000000000, 1);
  expect_readable<std::int64_t>(prefix, TokenType::int64, 1, std::int64_t{1} << 40);
  expect_readable<double>(prefix, TokenType::float64, 70000, 1);
  expect_readable<float>(prefix, TokenType::float32, 70000, 1);
  expect_readable<std::uint16_t>(prefix, TokenType::uint16, 65000, 1);
}

TEST_F(IndexedDatasetTest, CodeSevenIsFloat64WhereTheBinFileSaysSo) {
  write_dataset<double>(folder_ / "d", {2, 3}, TokenType::float64, 5.0, 1.0);
  IdxContent idx = make_idx({2, 3}, TokenType::float64);
  idx.code = 7;
  write_file_atomically(folder_ / "d.idx", idx.bytes());
  const IndexedDataset dataset(folder_ / "d");
  EXPECT_EQ(dataset.type(), TokenType::float64);
  std::int32_t token = 0;
  dataset.read<std::int32_t>(1, 2, {&token, 1});
  EXPECT_EQ(token, 9);
}

TEST_F(IndexedDatasetTest, RefusesElementsThatAreNoTokenIds) {
  write_dataset<float>(folder_ / "half", {4}, TokenType::float32, 0.0f, 0.5f);
  write_dataset<std::int64_t>(folder_ / "wide", {4}, TokenType::int64, std::int64_t{1} << 31);
  write_dataset<double>(folder_ / "nan", {1}, TokenType::float64,
                        std::numeric_limits<double>::quiet_NaN());
  std::vector<std::int32_t> tokens(1);
  expect_error(ExitCode::data,
               "half.bin': 0.5 in sequence 0, token 1, is not a token id of 32 bits",
               [&] { IndexedDataset(folder_ / "half").read<std::int32_t>(0, 1, tokens); });
  expect_error(ExitCode::data, "2147483648 in sequence 0, token 0, is not a token id of 32 bits",
               [&] { IndexedDataset(folder_ / "wide").read<std::int32_t>(0, 0, tokens); });
  expect_error(ExitCode::data, "nan in sequence 0",
               [&] { IndexedDataset(folder_ / "nan").read<std::int32_t>(0, 0, tokens); });
  expect_error(ExitCode::internal, "tokens 4..5 of a sequence of 4",
               [&] { IndexedDataset(folder_ / "half").read<std::int32_t>(0, 4, tokens); });
}

TEST_F(IndexedDatasetTest, DocumentsAreRunsOfSequences) {
  write_dataset<std::uint16_t>(folder_ / "d", {4, 0, 2, 5}, TokenType::uint16);
  IdxContent idx = make_idx({4, 0, 2, 5}, TokenType::uint16);
  idx.first_sequences = {0, 0, 2, 2, 4};
  // A multimodal dataset has a byte per sequence at the end.
  write_file_atomically(folder_ / "d.idx", idx.bytes() + std::string(4, '\0'));
  const IndexedDataset dataset(folder_ / "d");
  EXPECT_EQ(dataset.documents(), 4);
  EXPECT_EQ(dataset.document_of(0), 1);
  EXPECT_EQ(dataset.document_of(1), 1);
  EXPECT_EQ(dataset.document_of(2), 3);
  EXPECT_EQ(dataset.document_of(3), 3);
}

TEST_F(IndexedDatasetTest, AnEmptyDatasetIsADataset) {
  write_dataset<std::uint16_t>(folder_ / "d", {}, TokenType::uint16);
  const IndexedDataset dataset(folder_ / "d");
  EXPECT_EQ(dataset.sequences(), 0);
  EXPECT_EQ(dataset.documents(), 0);
  EXPECT_TRUE(dataset.lengths().empty());
}

TEST_F(IndexedDatasetTest, MissingFilesAreNamed) {
  expect_error(ExitCode::io, "d.idx': No such file", [&] { IndexedDataset{folder_ / "d"}; });
  write_file_atomically(folder_ / "d.idx", make_idx({}, TokenType::uint8).bytes());
  expect_error(ExitCode::io, "d.bin': No such file", [&] { IndexedDataset{folder_ / "d"}; });
}

TEST_F(IndexedDatasetTest, TextsAreNoDatasets) {
  write_file_atomically(folder_ / "corpus.json", "{}");
  std::filesystem::create_directory(folder_ / "corpus.lazy");
  for (const char* name : {"corpus.json", "corpus.lazy"})
    expect_error(ExitCode::data,
                 std::string(name) +
                     "' is not an indexed dataset, which is a pair of files PREFIX.bin and "
                     "PREFIX.idx; make one of the text with trireme-preprocess",
                 [&] { IndexedDataset{folder_ / name}; });
}

TEST_F(IndexedDatasetTest, PrefixMayCarryAnEnding) {
  EXPECT_EQ(dataset_prefix("a/b.c_document.bin"), "a/b.c_document");
  EXPECT_EQ(dataset_prefix("a/b.c_document.idx"), "a/b.c_document");
  EXPECT_EQ(dataset_prefix("a/b.c_document"), "a/b.c_document");
}

TEST_F(IndexedDatasetTest, RefusesForeignFiles) {
  expect_refused("", 0, "d.idx': truncated: the header needs 34 bytes, the file has 0");
  expect_refused("MMIDIDX", 0, "truncated: the header needs 34 bytes, the file has 7");
  expect_refused("TNTIDX", 0, "not an indexed dataset: it does not begin with MMIDIDX");
  expect_refused(std::string(500, 'x'), 0, "not an indexed dataset");
  IdxContent idx = make_idx({3}, TokenType::uint16);
  idx.version = 2;
  expect_refused(idx.bytes(), 6, "version 2 of the format; only version 1 is known");
  idx.version = 1;
  for (const int code : {0, 9, 255}) {
    idx.code = static_cast<std::uint8_t>(code);
    expect_refused(idx.bytes(), 6,
                   fmt::format("unknown element type code {}; known are 1 to 8", code));
  }
}

TEST_F(IndexedDatasetTest, RefusesTruncatedFiles) {
  const std::string right = make_idx({3, 4}, TokenType::uint16).bytes();
  expect_refused(right.substr(0, right.size() - 1), 14,
                 "d.idx': truncated: the header promises 82 bytes, the file has 81");
  expect_refused(
      right + "x", 14,
      "d.idx': inconsistent: the header promises 82 bytes (or 84 with modes), the file has 83");
  expect_refused(right, 13, "d.bin': truncated: sequence 1 of 2 ends at byte 14, the file has 13");
  expect_refused(
      right, 16,
      "d.bin': inconsistent: the index promises 14 bytes (7 uint16 tokens), the file has 16");
  // Counts whose products leave 64 bits.
  for (const std::uint64_t count : {~std::uint64_t{0}, std::uint64_t{1} << 61}) {
    std::string huge = right;
    std::memcpy(huge.data() + 18, &count, 8);
    expect_refused(huge, 14, fmt::format("the header promises {} sequences", count));
    huge = right;
    std::memcpy(huge.data() + 26, &count, 8);
    expect_refused(huge, 14,
                   fmt::format("and {} document boundaries, the file has 82 bytes", count));
  }
}

TEST_F(IndexedDatasetTest, RefusesInconsistentArrays) {
  const IdxContent right = make_idx({3, 4}, TokenType::uint16);
  IdxContent idx = right;
  idx.lengths = {-3, 4};
  expect_refused(idx.bytes(), 14, "sequence 0 has length -3");
  idx = right;
  idx.pointers[1] = 8;
  expect_refused(idx.bytes(), 14,
                 "sequence 1 is said to begin at byte 8, the lengths before it give 6");
  idx = right;
  idx.pointers[0] = -1;
  expect_refused(idx.bytes(), 14,
                 "sequence 0 is said to begin at byte -1, the lengths before it give 0");
  idx = right;
  idx.first_sequences = {1, 1, 2};
  expect_refused(idx.bytes(), 14, "the first document begins at sequence 1 instead of 0");
  idx.first_sequences = {0, 2, 1, 2};
  expect_refused(idx.bytes(), 14, "document boundary 2 is 1, less than the one before, 2");
  idx.first_sequences = {0, 1};
  expect_refused(idx.bytes(), 14, "the documents end at sequence 1, but there are 2 sequences");
  idx.first_sequences = {0, 1, 3};
  expect_refused(idx.bytes(), 14, "the documents end at sequence 3, but there are 2 sequences");
  idx.first_sequences = {};
  expect_refused(idx.bytes(), 14, "the list of document boundaries is empty");
}

// Every byte of the file is reached by some mutation; whatever opens can be read from end to end.
TEST_F(IndexedDatasetTest, MutatedIndicesNeverCrash) {
  const int inputs = 20000;
  std::mt19937 random(20240501);
  constexpr std::size_t kArrays = 34;
  const std::vector<std::int32_t> lengths = {3, 0, 4, 1, 7};
  write_dataset<std::uint16_t>(folder_ / "d", lengths, TokenType::uint16);
  const std::string right = make_idx(lengths, TokenType::uint16).bytes();
  const std::filesystem::path name = folder_ / "d.idx";
  int opened = 0, refused = 0;
  for (int input = 0; input < inputs; ++input) {
    std::string bytes = right;
    for (unsigned change = random() % 3 + 1; change-- > 0;) {
      const std::size_t at = random() % bytes.size();
      switch (random() % 6) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
          break;
        case 2:
          bytes.resize(std::max(at, kArrays + 4));
          break;
        case 3:  // a small number where an array has one
          bytes[kArrays + 4 * (at % ((bytes.size() - kArrays) / 4))] =
              static_cast<char>(random() % 8);
          break;
        case 4:
          bytes.insert(at, random() % 16 + 1, static_cast<char>(random()));
          break;
        default:
          for (std::size_t i = at; i < std::min(bytes.size(), at + 8); ++i)
            bytes[i] = random() % 2 ? '\xff' : '\x7f';
      }
    }
    // A new file each time: truncating one makes some file systems flush it.
    std::filesystem::remove(name);
    std::ofstream(name, std::ios::binary | std::ios::trunc) << bytes;
    try {
      const IndexedDataset dataset(folder_ / "d");
      ++opened;
      std::int64_t seen = 0;
      for (std::int64_t sequence = 0; sequence < dataset.sequences(); ++sequence) {
        std::vector<std::int64_t> tokens(dataset.length(sequence));
        try {
          dataset.read<std::int64_t>(sequence, 0, tokens);
        } catch (const DataError&) {  // a changed element type may make fractions
        }
        seen += std::ssize(tokens);
        EXPECT_LT(dataset.document_of(sequence), dataset.documents());
      }
      EXPECT_EQ(seen, dataset.tokens());
    } catch (const DataError& error) {
      ++refused;
      ASSERT_NE(std::string(error.what()).find("d."), std::string::npos) << error.what();
    }
  }
  EXPECT_GT(opened, inputs / 200);
  EXPECT_GT(refused, inputs / 2);
}

}  // namespace
}  // namespace trireme::data
