#include "generate/text.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

namespace trireme::generate {
namespace {

using Ids = std::vector<std::int32_t>;

TEST(ContinuationText, IsWhatFollowsThePrompt) {
  const auto tokenizer = tokenizer::make_tokenizer({.type = "bytes"});
  EXPECT_EQ(continuation_text(*tokenizer, tokenizer->encode("In the"), tokenizer->encode(" end")),
            " end");
  EXPECT_EQ(continuation_text(*tokenizer, {}, tokenizer->encode("x")), "x");
  EXPECT_EQ(continuation_text(*tokenizer, tokenizer->encode("x"), {}), "");
}

TEST(ContinuationText, ReplacesPartsOfCharacters) {
  const auto tokenizer = tokenizer::make_tokenizer({.type = "bytes"});
  // An accented e, then a euro sign cut after its second byte.
  EXPECT_EQ(continuation_text(*tokenizer, Ids{'a'}, Ids{0xC3, 0xA9, 0xE2, 0x82}),
            "\xC3\xA9\xEF\xBF\xBD");
  EXPECT_EQ(continuation_text(*tokenizer, Ids{'a'}, Ids{0x80, 'b'}),
            "\xEF\xBF\xBD"
            "b");
}

/// Decodes like WordPiece: a piece that starts with # joins the word before it, which then ends in
/// a capital, so that decoding the prompt alone gives another text.
class JoiningTokenizer : public tokenizer::Tokenizer {
 public:
  std::string_view name() const override { return "joining"; }
  std::int32_t vocab_size() const override { return 2; }
  std::optional<std::int32_t> eod() const override { return std::nullopt; }
  std::uint64_t hash() const override { return 0; }
  Ids encode(std::string_view) const override { return {}; }
  std::string decode(std::span<const std::int32_t> ids) const override {
    return ids.size() == 2 ? "AB" : ids[0] == 0 ? "a" : "b";
  }
};

TEST(ContinuationText, FallsBackToTheNewTokensAlone) {
  EXPECT_EQ(continuation_text(JoiningTokenizer(), Ids{0}, Ids{1}), "b");
}

TEST(ContinuationText, KeepsTheSpaceBetweenWords) {
  const std::filesystem::path gpt2 = std::filesystem::path(TRIREME_SOURCE_DIR) / "tests/data/gpt2";
  const auto tokenizer = tokenizer::make_tokenizer(
      {.type = "gpt2", .vocab = gpt2 / "vocab.json", .merges = gpt2 / "merges.txt"});
  const Ids prompt = tokenizer->encode("In the beginning");
  EXPECT_EQ(continuation_text(*tokenizer, prompt, tokenizer->encode(" God created")),
            " God created");
}

}  // namespace
}  // namespace trireme::generate
