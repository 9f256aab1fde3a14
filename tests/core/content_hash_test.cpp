#include "core/files.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace trireme {
namespace {

std::uint64_t hash_of(std::initializer_list<std::string> pieces) {
  ContentHash hash;
  for (const std::string& piece : pieces) hash.add(piece);
  return hash.value();
}

// Records hold these values: they must not change with the program.
TEST(ContentHash, IsThatOfEarlierPrograms) {
  EXPECT_EQ(hash_of({}), 0xe9e0033e3badaf36u);
  EXPECT_EQ(hash_of({"the quick brown fox"}), 0x8db595b8b5189e7au);
}

TEST(ContentHash, TellsEveryBitAndTheCutOfPieces) {
  std::set<std::uint64_t> hashes = {hash_of({}),          hash_of({""}),
                                    hash_of({"ab", "c"}), hash_of({"a", "bc"}),
                                    hash_of({"abc"}),     hash_of({std::string("abc\0", 4)})};
  EXPECT_EQ(hashes.size(), 6u);
  std::string text(37, 'x');
  for (std::size_t bit = 0; bit < 8 * text.size(); ++bit) {
    text[bit / 8] ^= static_cast<char>(1 << bit % 8);
    EXPECT_TRUE(hashes.insert(hash_of({text})).second) << bit;
    text[bit / 8] ^= static_cast<char>(1 << bit % 8);
  }
}

TEST(Crc32c, TestVectors) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);    // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);  // RFC 3720, B.4
}

}  // namespace
}  // namespace trireme
