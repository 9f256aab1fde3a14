#include "plan/setup.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "core/error.hpp"
#include "decks.hpp"

namespace trireme::plan {
namespace {

TEST(Vocabulary, IsTheTokenizersUnlessTheDeckGivesMore) {
  const Vocabulary bytes = vocabulary(gpt2_deck({"data.tokenizer.type=bytes", "model.vocab="}));
  EXPECT_EQ(bytes.size, 257);
  EXPECT_EQ(bytes.eod, 256);
  const Vocabulary wider = vocabulary(gpt2_deck({"data.tokenizer.type=bytes", "model.vocab=300"}));
  EXPECT_EQ(wider.size, 300);
  EXPECT_EQ(wider.eod, 256);
}

TEST(Vocabulary, MustHoldTheTokenizers) {
  try {
    vocabulary(gpt2_deck({"data.tokenizer.type=bytes", "model.vocab=100"}));
    FAIL();
  } catch (const DeckError& error) {
    EXPECT_NE(std::string(error.what())
                  .find("model.vocab = 100 is smaller than the 257 ids of data.tokenizer; leave "
                        "model.vocab out or give 257 or more"),
              std::string::npos)
        << error.what();
  }
}

TEST(Vocabulary, WithoutTokenizerIsTheDecks) {
  const Vocabulary given = vocabulary(gpt2_deck());
  EXPECT_EQ(given.size, 50257);
  EXPECT_FALSE(given.eod.has_value());
  deck::Deck neither = gpt2_deck();
  neither.model.vocab.reset();
  EXPECT_THROW(vocabulary(neither), DeckError);
}

TEST(Vocabulary, OfAPlanNeedsNoTokenizerWhereTheDeckGivesItsSize) {
  const std::vector<std::string> elsewhere = {"data.tokenizer.type=sentencepiece",
                                              "data.tokenizer.model=not/here.model"};
  EXPECT_EQ(planned_vocabulary(gpt2_deck(elsewhere)), 50257);
  EXPECT_EQ(planned_vocabulary(gpt2_deck({"data.tokenizer.type=bytes", "model.vocab="})), 257);
  EXPECT_THROW(planned_vocabulary(gpt2_deck({"data.tokenizer.type=bytes", "model.vocab=100"})),
               DeckError);
  deck::Deck unknown = gpt2_deck(elsewhere);
  unknown.model.vocab.reset();
  try {
    planned_vocabulary(unknown);
    FAIL();
  } catch (const IoError& error) {
    EXPECT_EQ(error.what(), "data.tokenizer.model: there is no file 'not/here.model' in '" +
                                std::filesystem::current_path().string() +
                                "'; give its path from there, or an absolute one; with "
                                "model.vocab=N the plan needs no tokenizer");
  }
}

TEST(Vocabulary, MustSayWhereDocumentsEndWhenAKeyAsks) {
  for (const std::string key : {"reset_positions=true", "reset_attention=true", "eod_loss=false"}) {
    const std::vector<std::string> words = {"run.device=host", "precision.compute=fp32",
                                            "data." + key};
    try {
      vocabulary(gpt2_deck(words));
      FAIL() << key;
    } catch (const DeckError& error) {
      std::string written = key;
      written.replace(written.find('='), 1, " = ");
      EXPECT_EQ(error.what(), "data." + written +
                                  " needs the end-of-document token: give data.tokenizer one that "
                                  "has it");
    }
    auto with_tokenizer = words;
    with_tokenizer.insert(with_tokenizer.end(), {"data.tokenizer.type=bytes", "model.vocab="});
    EXPECT_EQ(model::make_spec(gpt2_deck(with_tokenizer), {.size = 257, .eod = 256}).documents.eod,
              256);
  }
}

}  // namespace
}  // namespace trireme::plan
