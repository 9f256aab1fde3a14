#include "tokenizer/preprocess/preprocess.hpp"

#include <gtest/gtest.h>

#include <sstream>

#include "fixture.hpp"

namespace trireme::tokenizer {
namespace {

using Texts = std::vector<std::string>;

Texts split(std::string_view text, std::string_view language = "en", bool keep = false) {
  Texts sentences;
  for (const std::string_view sentence : split_sentences(text, sentence_rules(language), keep))
    sentences.emplace_back(sentence);
  return sentences;
}

class SentencesOf : public testing::TestWithParam<const char*> {};

TEST_P(SentencesOf, RealTextAreItsLines) {
  std::istringstream file(read_file(test_data(fmt::format("sentences/{}.txt", GetParam()))));
  Texts lines;
  std::string blanks, newlines;
  for (std::string line; std::getline(file, line); lines.push_back(line)) {
    blanks += line + " ";
    newlines += (lines.empty() ? "" : lines.size() % 3 ? "\n" : "\r\n\r\n") + line;
  }
  ASSERT_GT(lines.size(), 8u);
  EXPECT_EQ(split(blanks, GetParam()), lines);
  EXPECT_EQ(split(newlines, GetParam()), lines);
  std::string joined;
  for (const std::string& sentence : split(newlines, GetParam(), /*keep=*/true)) joined += sentence;
  EXPECT_EQ(joined, newlines);
}

INSTANTIATE_TEST_SUITE_P(Languages, SentencesOf,
                         testing::Values("en", "de", "fr", "es", "it", "pt", "ru"),
                         [](const auto& language) { return std::string(language.param); });

TEST(Sentences, AbbreviationsEndThemBeforeStarters) {
  EXPECT_EQ(split("The U.S. Army came to the U.S. The army left."),
            (Texts{"The U.S. Army came to the U.S.", "The army left."}));
  EXPECT_EQ(split("He works at Apple Inc. Cupertino. She, too, at Apple Inc. The end."),
            (Texts{"He works at Apple Inc. Cupertino.", "She, too, at Apple Inc.", "The end."}));
  EXPECT_EQ(split("No. I disagree. No. 5 is alive."),
            (Texts{"No.", "I disagree.", "No. 5 is alive."}));
  EXPECT_EQ(split("George W. Bush. E.g. Mr. Smith."),
            (Texts{"George W. Bush.", "E.g. Mr. Smith."}));
  // Without the language's words only initials are known.
  EXPECT_EQ(split("Mr. Smith and J. R. Smith.", "none"), (Texts{"Mr.", "Smith and J. R. Smith."}));
}

TEST(Sentences, NumbersAndOrdinals) {
  EXPECT_EQ(split("1. Introduction. It was in 1998. 2 years later."),
            (Texts{"1. Introduction.", "It was in 1998.", "2 years later."}));
  EXPECT_EQ(split("Am 3. Oktober kam er. Er kam am 3. Er ging 1998. Ende.", "german"),
            (Texts{"Am 3. Oktober kam er.", "Er kam am 3.", "Er ging 1998.", "Ende."}));
  EXPECT_EQ(split("On the 3. October came."), (Texts{"On the 3.", "October came."}));
}

TEST(Sentences, QuotesBracketsAndLowerCase) {
  EXPECT_EQ(split("\"Who?\" he asked. (Nobody.) Really?! Yes... maybe. End.[1][23] Next."),
            (Texts{"\"Who?\" he asked.", "(Nobody.)", "Really?!", "Yes... maybe.", "End.[1][23]",
                   "Next."}));
  EXPECT_EQ(split("A text without an end"), Texts{"A text without an end"});
  EXPECT_EQ(split("Version 1.2.3 of a.b.c"), Texts{"Version 1.2.3 of a.b.c"});
}

TEST(Sentences, OtherScripts) {
  EXPECT_EQ(split("我能吞下玻璃。你好！“真的？”他说。", "none"),
            (Texts{"我能吞下玻璃。", "你好！", "“真的？”", "他说。"}));
  EXPECT_EQ(split("नमस्ते दुनिया। यह है।", "none"), (Texts{"नमस्ते दुनिया।", "यह है।"}));
  EXPECT_EQ(split("مرحبا؟ نعم.", "none"), (Texts{"مرحبا؟", "نعم."}));
}

TEST(Sentences, BlankLinesEndThemAndNewlinesDoNot) {
  const std::string text = "\n A heading\n \nA wrapped\nline. Next.\n";
  EXPECT_EQ(split(text), (Texts{"A heading", "A wrapped\nline.", "Next."}));
  EXPECT_EQ(split(text, "en", true), (Texts{"\n A heading\n \n", "A wrapped\nline. ", "Next.\n"}));
  EXPECT_EQ(split(""), Texts{});
  EXPECT_EQ(split(" \n\n "), Texts{});
}

TEST(Sentences, TakeTimeInProportionToTheText) {
  std::string text;
  for (int i = 0; i < 300'000; ++i) text += "Mr. A. ";
  EXPECT_EQ(split(text).size(), 1u);
  EXPECT_EQ(split(std::string(1'000'000, '.')).size(), 1u);
}

TEST(Sentences, UnknownLanguagesAreNamed) {
  EXPECT_EQ(message_of<UsageError>([] { sentence_rules("xx"); }),
            "--language xx: there are rules for en, de, fr, es, it, pt, ru, none; none is for "
            "languages without abbreviations");
}

TEST(Punctuation, BecomesAscii) {
  EXPECT_EQ(standardize_punctuation("“A” ‘b’ „c“ «d» ``e'' don’t — f–g… h\u00a0i\u2009j\tk\nl"),
            "\"A\" 'b' \"c\" \"d\" \"e\" don't - f-g... h i j k\nl");
  EXPECT_EQ(standardize_punctuation("co\u00adop\u200b\ufeff é 日本、語。 می\u200cشود"),
            "coop é 日本、語。 می\u200cشود");
}

}  // namespace
}  // namespace trireme::tokenizer
