// GPT-2's byte-level BPE: ids equal to OpenAI's, words by hand equal to words by the pattern.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "fixture.hpp"
#include "tokenizer/bpe/bpe.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::tokenizer {
namespace {

using Ids = std::vector<std::int32_t>;

/// Text that mixes what the pattern tells apart: ASCII of all kinds, contractions, white space,
/// letters, numbers and marks of many scripts.
std::string random_text(std::mt19937& random, std::size_t characters) {
  static const std::u32string odd =
      U"éßñžſЖшאب中日語한ไ "
      U"नि1²½Ⅷ٣①'"
      U"—“€°😀👩\u200d👧\ufe0f\u0301\u00a0\u0085\u1680\u2003\u2028\u202f\u3000\u180e\u200b\ufeff";
  static const std::string special = "  \t\n\r\v\f\x1c\x1f''stremvld";
  std::string text;
  const unsigned style = random() % 4;
  for (std::size_t i = 0; i < characters; ++i) {
    const unsigned draw = random() % 8;
    if (draw < style)
      append_utf8(text, odd[random() % odd.size()]);
    else if (draw < 6)
      text.push_back(special[random() % special.size()]);
    else
      text.push_back(static_cast<char>(random() % 128));
  }
  return text;
}

TEST(Gpt2, EqualsOpenAisEncoder) {
  const auto golden = nlohmann::json::parse(read_file(test_data("gpt2/golden.json")));
  ASSERT_GT(golden.size(), 500u);
  for (const auto& entry : golden) {
    const std::string text = from_hex(entry["bytes"]);
    const Ids ids = gpt2().encode(text);
    EXPECT_EQ(ids, entry["ids"].get<Ids>()) << entry["bytes"];
    EXPECT_EQ(gpt2().decode(ids), replace_invalid_utf8(text)) << entry["bytes"];
  }
}

TEST(Gpt2, KnowsItsVocabulary) {
  EXPECT_EQ(gpt2().name(), "gpt2");
  EXPECT_EQ(gpt2().vocab_size(), 50257);
  EXPECT_EQ(gpt2().eod(), 50256);
  EXPECT_EQ(gpt2().decode(Ids{50256}), "<|endoftext|>");
  EXPECT_EQ(gpt2().encode("Hello world"), (Ids{15496, 995}));
}

TEST(Gpt2, WordsByHandEqualWordsByPattern) {
  std::mt19937 random(7);
  for (const std::string_view pattern : {kGpt2Pattern, kLlama3Pattern, kQwenPattern}) {
    const WordPattern words(pattern);
    for (int i = 0; i < 10000; ++i) {
      const std::string text = random_text(random, 1 + random() % 60);
      for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = words.end_of_word(text, begin);
        ASSERT_EQ(end, words.end_of_word_by_pattern(text, begin))
            << "at " << begin << " of " << text << " with " << pattern;
        begin = end;
      }
    }
  }
}

// A letter of Unicode 15, a number and a letter of 16, and a symbol of 15: only a symbol takes the
// apostrophe that follows it.
TEST(Gpt2, KnowsTheLettersOfUnicode16) {
  const WordPattern words(kGpt2Pattern);
  EXPECT_EQ(words.end_of_word("\U00031350's", 0), 4u);
  EXPECT_EQ(words.end_of_word("\U00016130's", 0), 4u);
  EXPECT_EQ(words.end_of_word("a\U0001E5D0's", 0), 5u);
  EXPECT_EQ(words.end_of_word("\U0001FAE8's", 0), 5u);
}

TEST(Gpt2, DecodingRestoresTheText) {
  std::mt19937 random(8);
  for (int i = 0; i < 2000; ++i) {
    const std::string text = random_text(random, random() % 200);
    ASSERT_EQ(gpt2().decode(gpt2().encode(text)), text);
  }
}

TEST(Gpt2, LongWordsTakeNoQuadraticTime) {
  for (const std::string unit : {"a", " ", "\n", "!", "ab", "é", "\u3000"}) {
    std::string text;
    while (text.size() < 300'000) text += unit;
    ASSERT_EQ(gpt2().decode(gpt2().encode(text)), text) << unit;
  }
}

TEST(Gpt2, ThreadsShareIt) {
  std::mt19937 random(9);
  std::vector<std::string> texts;
  std::vector<Ids> expected;
  for (int i = 0; i < 200; ++i) texts.push_back(random_text(random, 100));
  for (const std::string& text : texts) expected.push_back(gpt2().encode(text));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (std::size_t i = 0; i < texts.size(); ++i)
        EXPECT_EQ(gpt2().encode(texts[i]), expected[i]);
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(Gpt2, RefusesUnknownIds) {
  const std::string message = message_of<DataError>([] { gpt2().decode(Ids{1, 50257}); });
  EXPECT_EQ(message, "gpt2 tokenizer: there is no id 50257; the vocabulary has ids 0 to 50256");
  EXPECT_THROW(gpt2().decode(Ids{-1}), DataError);
}

class Gpt2FilesTest : public FolderTest {
 protected:
  std::string error_with(const std::string& vocab, const std::string& merges) {
    return message_of<DataError>([&] { make_tokenizer({"gpt2", vocab, merges, {}}); });
  }
  const std::string vocab_ = test_data("gpt2/vocab.json").string();
  const std::string merges_ = test_data("gpt2/merges.txt").string();
};

TEST_F(Gpt2FilesTest, MalformedFilesAreNamedWithTheReason) {
  EXPECT_EQ(error_with(vocab_, write("m", "#version: 0.2\nĠ t\nĠ a b\n")),
            (folder_ / "m").string() + ":3: expected two tokens, got 'Ġ a b'");
  EXPECT_EQ(error_with(vocab_, write("m", "Ġ t\nĠ qqq\n")),
            (folder_ / "m").string() +
                ":2: token 'Ġqqq' is not in the vocabulary; do the two files belong together?");
  const std::string v = (folder_ / "v").string();
  EXPECT_EQ(error_with(write("v", "[1, 2]"), merges_),
            v + ": not a vocabulary: expected one JSON object {\"token\": id, ...}");
  EXPECT_EQ(error_with(write("v", "{\"a\": 0, \"b\""), merges_),
            v + ": not a vocabulary: expected one JSON object {\"token\": id, ...}");
  EXPECT_EQ(error_with(write("v", "{}"), merges_), v + ": the vocabulary is empty");
  EXPECT_EQ(error_with(write("v", "{\"a\": 0, \"b\": 2}"), merges_),
            v + ": the id of 'b' is 2; expected the whole numbers 0 to 1, each once");
  EXPECT_EQ(error_with(write("v", "{\"a\": 0, \"b\": 0}"), merges_),
            v + ": 'a' and 'b' have the same id 0");
  EXPECT_EQ(error_with(write("v", "{\"a\": 0, \"b\": 1}"), merges_),
            v + ": the vocabulary has no token 'Ā' for byte 0");
  auto vocabulary = nlohmann::json::parse(read_file(vocab_));
  vocabulary["two words"] = 50257;
  EXPECT_EQ(error_with(write("v", vocabulary.dump()), merges_),
            v + ": token 'two words' is not written in GPT-2's byte alphabet");
  EXPECT_THROW(make_tokenizer({"gpt2", folder_ / "absent", merges_, {}}), IoError);
}

}  // namespace
}  // namespace trireme::tokenizer
