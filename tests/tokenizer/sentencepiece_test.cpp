#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "fixture.hpp"
#include "tokenizer/kinds.hpp"

namespace trireme::tokenizer {
namespace {

using Ids = std::vector<std::int32_t>;

/// Sentences of a small made-up language: two hundred words of two or three syllables.
std::vector<std::string> corpus() {
  std::mt19937 random(3);
  const auto pick = [&](const auto& choices) {
    return std::string(std::data(choices)[random() % std::size(choices)]);
  };
  constexpr const char* kHeads[] = {"b", "d", "k", "st", "tr", "m"};
  constexpr const char* kTails[] = {"a", "e", "ir", "on", "u"};
  constexpr const char* kEnds[] = {" ", " ", ", ", ". "};
  std::vector<std::string> words(200);
  for (std::string& word : words)
    for (unsigned syllable = 0; syllable < 2 + random() % 2; ++syllable)
      word += pick(kHeads) + pick(kTails);
  std::vector<std::string> sentences(2000);
  for (std::string& sentence : sentences)
    for (int word = 0; word < 8; ++word) sentence += pick(words) + pick(kEnds);
  return sentences;
}

class SentencePieceTest : public FolderTest, public testing::WithParamInterface<const char*> {};

TEST_P(SentencePieceTest, TrainsAndRoundTrips) {
  const auto model = train_sentencepiece(corpus(), {400, GetParam()});
  EXPECT_EQ(train_sentencepiece(corpus(), {400, GetParam()}), model) << "not deterministic";
  const auto tokenizer = make_tokenizer({"sentencepiece", "", "", write("m.model", model.model)});
  EXPECT_EQ(tokenizer->name(), "sentencepiece");
  EXPECT_EQ(tokenizer->vocab_size(), 400);
  EXPECT_EQ(tokenizer->eod(), 1);
  EXPECT_FALSE(tokenizer->bert_tokens());

  const std::string known = corpus().front();
  EXPECT_LT(tokenizer->encode(known).size(), known.size() * 2 / 3);
  for (const std::string text : {known.c_str(), "", "a", "  two  blanks ", "line\nline\r\n\n",
                                 "日本 😀 é\u0301", "<|endoftext|>", "<unk>"})
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  for (const std::int32_t id : tokenizer->encode("x<|endoftext|>")) EXPECT_GT(id, 1);
  EXPECT_EQ(tokenizer->encode("a\xFF"
                              "b"),
            tokenizer->encode("a\uFFFD"
                              "b"));
  EXPECT_THROW(tokenizer->decode(Ids{400}), DataError);
  EXPECT_THROW(tokenizer->decode(Ids{-1}), DataError);
}

TEST_P(SentencePieceTest, HasBertsTokensOnRequest) {
  const auto model =
      train_sentencepiece(corpus(), {.size = 400, .model_type = GetParam(), .bert_tokens = true});
  EXPECT_TRUE(model.vocab.starts_with("<unk>\t0\n<|endoftext|>\t0\n[PAD]\t0\n[CLS]\t0\n"))
      << model.vocab.substr(0, 100);
  EXPECT_EQ(std::ranges::count(model.vocab, '\n'), 400);
  const auto tokenizer = make_tokenizer({"sentencepiece", "", "", write("m.model", model.model)});
  EXPECT_EQ(tokenizer->vocab_size(), 400);
  const auto bert = tokenizer->bert_tokens();
  ASSERT_TRUE(bert);
  EXPECT_EQ((std::vector{bert->pad, bert->cls, bert->sep, bert->mask}), (Ids{2, 3, 4, 5}));
  // The names of special tokens in the text are ordinary text.
  for (const std::int32_t id : tokenizer->encode("[MASK]")) EXPECT_GT(id, 5);
  // Of each word the first piece starts it, and the others continue it.
  const Ids ids = tokenizer->encode("stabeda trumonka");
  EXPECT_EQ(std::ranges::count_if(ids, [&](auto id) { return !tokenizer->continues_word(id); }), 2);
  EXPECT_FALSE(tokenizer->continues_word(ids.front()));
  EXPECT_FALSE(tokenizer->continues_word(bert->cls));
  EXPECT_THROW(tokenizer->continues_word(400), DataError);
}

TEST_P(SentencePieceTest, SentencesAreCutAtTheLibrarysOwnCharacter) {
  std::vector<std::string> whole = corpus(), parts;
  whole.resize(400);
  for (std::size_t i = 0; i < whole.size(); i += 4) {
    for (const std::string& part : {whole[i], std::string("quux "), whole[i + 1]})
      parts.push_back(part);
    whole[i] = "\u2585" + whole[i] + "\u2585\u2585quux \u2585" + whole[i + 1];
    whole[i + 1].clear();
    for (const std::size_t other : {i + 2, i + 3}) parts.push_back(whole[other]);
  }
  const auto model = train_sentencepiece(whole, {400, GetParam()});
  EXPECT_EQ(model, train_sentencepiece(parts, {400, GetParam()}));
  const auto tokenizer = make_tokenizer({"sentencepiece", "", "", write("m.model", model.model)});
  const std::string text = "quux \u2585\u2585 quux";
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
}

INSTANTIATE_TEST_SUITE_P(Models, SentencePieceTest, testing::Values("unigram", "bpe"));

TEST_F(FolderTest, SentencePieceErrorsAreClear) {
  const auto too_much = [](std::int32_t size) {
    return message_of<DataError>([&] { train_sentencepiece({"a small corpus"}, {size}); });
  };
  EXPECT_THAT(too_much(5000),
              testing::MatchesRegex("this corpus gives at most ([0-9]+) pieces, fewer than 5000; "
                                    "give --size [0-9]+ or less, or more text"));
  EXPECT_EQ(too_much(100).find("a model of 100 pieces is too small: "), 0u) << too_much(100);
  EXPECT_EQ(message_of<DataError>([] { train_sentencepiece({}, {400}); }),
            "there is no text to train on");
  EXPECT_EQ(message_of<DataError>([] {
              train_sentencepiece({"\u2585", "\u2585\u2585"}, {400});
            }),
            "there is no text to train on: all of it is U+2585, a character that SentencePiece "
            "reserves");
  EXPECT_EQ(message_of<UsageError>(
                [] { train_sentencepiece({"a"}, {.size = 400, .model_type = "word"}); }),
            "unknown model type 'word': expected unigram or bpe");
  EXPECT_THROW(train_sentencepiece({"a"}, {0}), UsageError);

  const std::string file = write("no.model", "not a model");
  const std::string message = message_of<DataError>([&] {
    make_tokenizer({"sentencepiece", "", "", file});
  });
  EXPECT_EQ(message.find(file + ": not a SentencePiece model"), 0u) << message;
  EXPECT_THROW(make_tokenizer({"sentencepiece", "", "", folder_ / "absent"}), IoError);
  EXPECT_THROW(make_tokenizer({"sentencepiece", "", "", write("empty", "")}), DataError);
}

}  // namespace
}  // namespace trireme::tokenizer
