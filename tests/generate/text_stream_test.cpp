#include "generate/text_stream.hpp"

#include <gtest/gtest.h>

namespace trireme::generate {
namespace {

/// The pieces of `text`'s bytes, joined by "|", and the rest after "//".
std::string pieces(const std::string& text, std::vector<std::string> stops = {}) {
  const auto bytes = tokenizer::make_tokenizer({.type = "bytes"});
  TextStream stream(*bytes, bytes->encode("prompt"), std::move(stops));
  std::string joined;
  for (const char c : text) {
    const std::string piece = stream.push(static_cast<unsigned char>(c));
    if (!piece.empty()) joined += piece + "|";
    if (stream.stopped()) return joined + "stop";
  }
  return joined + "//" + stream.finish();
}

TEST(TextStream, KeepsBackPartsOfCharacters) {
  EXPECT_EQ(pieces("a\xC3\xA9z"), "a|\xC3\xA9|z|//");
  EXPECT_EQ(pieces("a\xE2\x82"), "a|//\xEF\xBF\xBD");
}

TEST(TextStream, KeepsBackWhatMayBeAStopString) {
  EXPECT_EQ(pieces("abcd", {"cx"}), "a|b|cd|//");
  EXPECT_EQ(pieces("abcxd", {"cx"}), "a|b|stop");
  EXPECT_EQ(pieces("aab", {"aab"}), "stop");
  EXPECT_EQ(pieces("xaaab", {"aab"}), "x|a|stop");
  EXPECT_EQ(pieces("ab", {"bc", ""}), "a|//b");
}

}  // namespace
}  // namespace trireme::generate
