// Repairs, similarities and contamination against reference.json, which make_reference.py computed
// with ftfy and Python's sets and regular expressions.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "../message_of.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "corpus/corpus.hpp"

namespace trireme::corpus {
namespace {

const nlohmann::json& reference() {
  static const auto json =
      nlohmann::json::parse(read_file(TRIREME_SOURCE_DIR "/tests/corpus/reference.json"));
  return json;
}

TEST(RepairTest, DoesWhatFtfyDoes) {
  ASSERT_GE(reference()["repairs"].size(), 23u);
  for (const auto& pair : reference()["repairs"]) {
    const auto text = pair[0].get<std::string>(), repaired = pair[1].get<std::string>();
    EXPECT_EQ(repair_text(text), repaired) << text;
    EXPECT_EQ(repair_text(repaired), repair_text(repair_text(text))) << "repairs are final";
  }
}

TEST(RepairTest, LeavesPlausibleTextAlone) {
  for (const char* text : {"“IRMÔ", "A Ð is an eth", "Dvořák, Łódź, 5 °C", "naïve – Ñandú"})
    EXPECT_EQ(repair_text(text).find("\xEF\xBF\xBD"), std::string::npos);
  EXPECT_EQ(repair_text("\u201cIRM\u00c3\u201d"), "\"IRM\u00c3\"");
  EXPECT_EQ(repair_text("A \u00d0\u00b0 alone"), "A \u00d0\u00b0 alone");
  EXPECT_EQ(repair_text("\u00d0\u00b0\u00d0\u00b1"), "\u0430\u0431") << "a run";
}

TEST(RepairTest, BytesLiterals) {
  EXPECT_TRUE(is_bytes_literal("b'a\\'b'"));
  EXPECT_TRUE(is_bytes_literal(" b\"it's\"\n"));
  for (const char* text : {"b", "b'", "b'a' and b'c'", "be 'quoted'", "b'a\\'"})
    EXPECT_FALSE(is_bytes_literal(text)) << text;
  EXPECT_EQ(decode_bytes_literal("b'caf\\xc3\\xa9\\n\\101\\q\\\\'"), "caf\u00e9\nA\\q\\");
  EXPECT_EQ(decode_bytes_literal("b\"it's\""), "it's");
  const auto message = [](const char* text) {
    return message_of<DataError>([&] { decode_bytes_literal(text); });
  };
  EXPECT_EQ(message("b'a\\xff'"), "the bytes literal is not UTF-8 at byte 2 (0xff)");
  EXPECT_EQ(message("b'\\x1'"), "the bytes literal has \\x without two hexadecimal digits");
  EXPECT_EQ(message("b'\u00e9'"), "the bytes literal has characters outside ASCII");
}

TEST(MinHashTest, JaccardIsThatOfPythonsSets) {
  for (const auto& row : reference()["similarities"]) {
    const auto a = shingles(row["a"].get<std::string>()), b = shingles(row["b"].get<std::string>());
    EXPECT_DOUBLE_EQ(jaccard(a, b, JaccardRule::union_of_both), row["union"].get<double>());
    EXPECT_DOUBLE_EQ(jaccard(a, b, JaccardRule::smaller), row["min"].get<double>());
    EXPECT_DOUBLE_EQ(jaccard(a, b, JaccardRule::larger), row["max"].get<double>());
  }
}

TEST(MinHashTest, EqualMinimaEstimateTheSimilarity) {
  constexpr int kHashes = 2000;
  const MinHash hash(7, kHashes);
  for (const auto& row : reference()["similarities"]) {
    const double similarity = row["union"];
    const auto a = shingles(row["a"].get<std::string>()), b = shingles(row["b"].get<std::string>());
    if (a.empty() || b.empty()) continue;
    const auto x = hash.signature(a), y = hash.signature(b);
    int equal = 0;
    for (std::size_t i = 0; i < x.size(); ++i) equal += x[i] == y[i];
    // Four standard deviations of the binomial distribution.
    EXPECT_NEAR(static_cast<double>(equal) / kHashes, similarity,
                4 * std::sqrt(similarity * (1 - similarity) / kHashes) + 1e-12);
  }
}

TEST(ContaminationTest, PartsAreThoseOfTheReference) {
  const auto& expected = reference()["contamination"];
  Ngrams ngrams({.margin = 20, .min_characters = 60});
  for (const auto& text : expected["evaluation"]) ngrams.add(text.get<std::string>());
  EXPECT_EQ(ngrams.size(), expected["ngrams"].get<std::size_t>());
  for (const auto& document : expected["documents"])
    EXPECT_EQ(ngrams.parts(document["text"].get<std::string>()),
              document["parts"].get<std::vector<std::string>>());
}

TEST(ContaminationTest, FrequentNgramsAreNone) {
  const std::string text = "one two three four five six seven eight";
  const std::string document = "It says: " + text + ". And so on with more and more words.";
  Ngrams ngrams({.max_count = 2});
  ngrams.add(text);
  EXPECT_EQ(ngrams.matches(document).size(), 1u);
  ngrams.count(ngrams.matches(document));
  ngrams.drop_frequent();
  EXPECT_EQ(ngrams.size(), 1u);
  EXPECT_TRUE(ngrams.parts(document).empty());
  ngrams.count(ngrams.matches(document));
  ngrams.drop_frequent();
  EXPECT_EQ(ngrams.size(), 0u);
  EXPECT_EQ(ngrams.parts(document), std::vector<std::string>{document});
}

TEST(UrlFilterTest, ReasonsAreTheFirstRuleThatFails) {
  const UrlFilter filter;
  const std::pair<const char*, const char*> cases[] = {
      {"https://www.bbc.co.uk/news/a-1", ""},
      {"http://example.com:8080/a.html?x=a.pdf", ""},
      {"http://10.0.0.1/x", ""},
      {"https://www.YouTube.com/watch?v=1", "url: domain"},
      {"https://youtu.be/1", "url: domain"},
      {"https://m.google.com.au/x", "url: domain"},
      {"https://example.com/a/b.PDF?page=2", "url: file type"},
      {"http://example.app/", ""},
      {"http://a", "url: short"},
      {"ftp://example.com/a", "url: malformed"},
      {"http://localhost/page", "url: malformed"},
      {"http://exa mple.com/a", "url: malformed"},
      {"http://example.com:port/a", "url: malformed"},
      {"http://-bad-.com/abc", "url: malformed"},
      {"http://300.1.1.1/abc", "url: malformed"}};
  for (const auto& [url, reason] : cases) EXPECT_EQ(filter.reason(url), reason) << url;
  EXPECT_EQ(UrlFilter::domain_of("https://user@news.bbc.co.uk:80/x"), "bbc");
  EXPECT_EQ(UrlFilter::domain_of("https://example.com"), "example");
}

TEST(LanguageTest, KnowsLanguages) {
  if (!has_language_detection()) GTEST_SKIP() << "this build is without CLD2";
  EXPECT_EQ(language_of("The committee meets on Tuesday, and everybody should bring the papers "
                        "that were sent out last week."),
            "en");
  EXPECT_EQ(language_of("Der Ausschuss tagt am Dienstag, und alle sollten die Unterlagen "
                        "mitbringen, die letzte Woche verschickt wurden."),
            "de");
  EXPECT_EQ(language_of("Комитет собирается во вторник, и все должны принести бумаги."), "ru");
}

TEST(CountWordsTest, WordsAndRunsOfPunctuation) {
  EXPECT_EQ(count_words("It's 3.5 m, really..."), 10u);
  EXPECT_EQ(count_words(" \n"), 0u);
}

}  // namespace
}  // namespace trireme::corpus
