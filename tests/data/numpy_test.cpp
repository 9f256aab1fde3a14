#include "data/numpy.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <vector>

#include "dataset_files.hpp"

namespace trireme::data {
namespace {

class NpyTest : public ScratchTest {
 protected:
  NpyArray map(const std::string& bytes) {
    write_file_atomically(folder_ / "a.npy", bytes);
    return NpyArray::map(folder_ / "a.npy");
  }
  // A version 1.0 file with this dictionary, unpadded.
  static std::string file(const std::string& dictionary, std::size_t data_bytes) {
    std::string bytes("\x93NUMPY\1\0", 8);
    append(bytes, static_cast<std::uint16_t>(dictionary.size()));
    return bytes + dictionary + std::string(data_bytes, '\2');
  }
  void expect_refused(const std::string& bytes, const std::string& text) {
    expect_error(ExitCode::data, text, [&] { map(bytes); });
  }
};

TEST_F(NpyTest, WritesNumpysBytes) {
  for (const char* name : {"document", "sample", "shuffle"}) {
    const auto path = golden(fmt::format("megatron/gpt_sep_final_{}_index.npy", name));
    EXPECT_EQ(NpyArray::map(path).serialize(), read_file(path)) << name;
  }
}

TEST_F(NpyTest, RoundTrip) {
  const std::int64_t big = std::numeric_limits<std::int64_t>::min();
  const NpyArray wide = map(NpyArray(std::vector<std::int64_t>{1, big, 3, 4}, 2).serialize());
  EXPECT_EQ(wide.type(), IntegerType::int64);
  EXPECT_EQ(wide.shape(), (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(wide(0, 1), big);
  EXPECT_EQ(wide(1, 0), 3);
  const NpyArray natural = map(NpyArray(std::vector<std::uint32_t>{4294967295u}).serialize());
  EXPECT_EQ(natural(0), 4294967295);
  const NpyArray large =
      map(NpyArray(std::vector<std::uint64_t>{1, 2, std::uint64_t{1} << 40}, 3).serialize());
  EXPECT_EQ(large.type(), IntegerType::uint64);
  EXPECT_EQ(large(0, 2), std::int64_t{1} << 40);
  const NpyArray narrow = map(NpyArray(std::vector<std::int16_t>{-7, 32766}).serialize());
  EXPECT_EQ(narrow(0), -7);
  EXPECT_EQ(narrow(1), 32766);
  const NpyArray whole = map(NpyArray(std::vector<std::int32_t>{-7, 8}).serialize());
  EXPECT_EQ(whole.columns(), 1);
  EXPECT_EQ(whole(0), -7);
  EXPECT_EQ(map(NpyArray(std::vector<std::int32_t>{}).serialize()).rows(), 0);
}

TEST_F(NpyTest, ReadsUnalignedDataAndOtherVersions) {
  const std::string dictionary = "{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }\n";
  EXPECT_EQ(map(file(dictionary, 12))(2), 0x02020202);
  std::string second = file(dictionary, 12);
  second[6] = 2;
  second.insert(10, 2, '\0');
  EXPECT_EQ(map(second)(2), 0x02020202);
}

TEST_F(NpyTest, RefusesWhatItCannotRead) {
  const auto dictionary = [](const char* descr, const char* fortran, const char* shape) {
    return fmt::format("{{'descr': {}, 'fortran_order': {}, 'shape': {}, }}\n", descr, fortran,
                       shape);
  };
  expect_refused("", "a.npy': not a .npy file");
  expect_refused("PK\3\4 a zip archive", "not a .npy file");
  expect_refused(file(dictionary("'<i4'", "False", "(3,)"), 0).substr(0, 40),
                 "truncated: its header needs");
  expect_refused(file(dictionary("'<f8'", "False", "(3,)"), 24),
                 "elements of type '<f8'; expected '<i2', '<i4', '<i8', '<u2', '<u4' or '<u8'");
  expect_refused(file(dictionary("'>i4'", "False", "(3,)"), 12), "elements of type '>i4'");
  expect_refused(file(dictionary("'<i4'", "True", "(3, 2)"), 24),
                 "not a row-major array of one or two axes");
  expect_refused(file(dictionary("'<i4'", "False", "(1, 2, 3)"), 24), "not a row-major array");
  expect_refused(file(dictionary("'<i4'", "False", "()"), 4), "not a row-major array");
  expect_refused(file(dictionary("'<i4'", "False", "(-1,)"), 4), "not a row-major array");
  expect_refused(file("{'descr': '<i4'}\n", 4), "not a row-major array");
  expect_refused(file("{'descr': '<i4', 'shape': (", 4), "not a row-major array");
  expect_refused(file(dictionary("'<i4'", "False", "(3,)"), 11),
                 "promises 12 bytes of data, the file has 11");
  expect_refused(file(dictionary("'<i8'", "False", "(4611686018427387904, 4)"), 11),
                 "more elements than any file holds");
}

// RandomState(1234): shuffle(arange(10)), three randint(0, 2**40), five randint(0, 7), two
// random().
TEST(NumpyRandom, DrawsAsNumpyDoes) {
  NumpyRandom random(1234);
  std::vector<int> values(10);
  std::iota(values.begin(), values.end(), 0);
  random.shuffle(std::span(values));
  EXPECT_EQ(values, (std::vector<int>{7, 2, 9, 1, 0, 8, 4, 5, 6, 3}));
  const std::uint64_t max = (std::uint64_t{1} << 40) - 1;
  EXPECT_EQ(random.interval(max), 1001914784922u);
  EXPECT_EQ(random.interval(max), 132293033643u);
  EXPECT_EQ(random.interval(max), 682720009964u);
  for (const std::uint64_t expected : {4, 2, 6, 2, 0}) EXPECT_EQ(random.interval(6), expected);
  EXPECT_EQ(random.uniform(), 0.5009951255234587);
  EXPECT_EQ(random.uniform(), 0.6834629351721363);
}

TEST(NumpyRandom, AnEmptyIntervalDrawsNothing) {
  NumpyRandom random(5), other(5);
  EXPECT_EQ(random.interval(0), 0u);
  std::vector<int> one = {3}, none;
  random.shuffle(std::span(one));
  random.shuffle(std::span(none));
  EXPECT_EQ(random.interval(1000), other.interval(1000));
}

}  // namespace
}  // namespace trireme::data
