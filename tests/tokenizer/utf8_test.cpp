#include "tokenizer/utf8.hpp"

#include <gtest/gtest.h>

namespace trireme::tokenizer {
namespace {

const std::string kBad = "\xEF\xBF\xBD";  // U+FFFD

std::string encode(char32_t code_point) {
  std::string text;
  append_utf8(text, code_point);
  return text;
}

TEST(Utf8, EveryCodePointRoundTrips) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    const std::string text = encode(c);
    const Utf8Step step = read_utf8(text, 0);
    ASSERT_TRUE(step.valid) << static_cast<std::uint32_t>(c);
    ASSERT_EQ(step.code_point, c);
    ASSERT_EQ(step.length, text.size());
  }
}

TEST(Utf8, ReplacesMaximalSubpartsAsPythonDoes) {
  // bytes.decode('utf-8', errors='replace') of CPython.
  EXPECT_EQ(replace_invalid_utf8("a\xFF"
                                 "b"),
            "a" + kBad + "b");
  EXPECT_EQ(replace_invalid_utf8("\xE2\x82"), kBad);
  EXPECT_EQ(replace_invalid_utf8("\xE2\x82(\x80"), kBad + "(" + kBad);
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\x98 \xF0\x9F"), kBad + " " + kBad);
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80"), kBad + kBad + kBad);
  EXPECT_EQ(replace_invalid_utf8("\xC0\x80"), kBad + kBad);
  EXPECT_EQ(replace_invalid_utf8("\xF4\x90\x80\x80"), kBad + kBad + kBad + kBad);
  EXPECT_EQ(replace_invalid_utf8("\xE0\x9F\xBF"), kBad + kBad + kBad);
}

TEST(Utf8, FindsTheFirstInvalidByte) {
  for (std::size_t ascii = 0; ascii < 40; ++ascii) {
    const std::string head(ascii, 'x');
    EXPECT_EQ(valid_utf8_prefix(head), ascii);
    EXPECT_EQ(valid_utf8_prefix(head + "\xC3\xA9"), ascii + 2);
    EXPECT_EQ(valid_utf8_prefix(head + "\xC3"), ascii);
    EXPECT_EQ(valid_utf8_prefix(head + "\xC3\xA9" + head + "\x80" + head), 2 * ascii + 2);
  }
}

}  // namespace
}  // namespace trireme::tokenizer
