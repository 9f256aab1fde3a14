#include "tokenizer/kinds.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "fixture.hpp"

namespace trireme::tokenizer {
namespace {

using Ids = std::vector<std::int32_t>;
using Words = std::vector<std::string>;

Words words_of(std::string_view text, bool lowercase) {
  Words words;
  for_each_bert_word(text, lowercase, [&](std::string_view word) { words.emplace_back(word); });
  return words;
}

TokenizerSpec spec_of(const std::filesystem::path& vocab, bool lowercase) {
  return {.type = "wordpiece", .vocab = vocab, .lowercase = lowercase};
}

TEST(WordPiece, EqualsTheReferenceOnEachLine) {
  const auto golden = nlohmann::json::parse(read_file(test_data("wordpiece/golden.json")));
  ASSERT_GT(golden.size(), 300u);
  for (const bool lowercase : {false, true}) {
    const auto tokenizer = make_tokenizer(spec_of(test_data("wordpiece/vocab.txt"), lowercase));
    for (const auto& entry : golden) {
      const std::string text = entry["text"];
      EXPECT_EQ(tokenizer->encode(text), entry[lowercase ? "uncased" : "cased"].get<Ids>())
          << (lowercase ? "uncased: " : "cased: ") << text;
    }
  }
}

TEST(WordPiece, FindsBertsWords) {
  EXPECT_EQ(words_of("Hello, World!", false), (Words{"Hello", ",", "World", "!"}));
  EXPECT_EQ(words_of("Hello, World!", true), (Words{"hello", ",", "world", "!"}));
  EXPECT_EQ(words_of("e\u0301A\u0308", true), (Words{"ea"}));
  EXPECT_EQ(words_of("ÀÉ", false), (Words{"ÀÉ"}));
  EXPECT_EQ(words_of("ab你好c", false), (Words{"ab", "你", "好", "c"}));
  EXPECT_EQ(words_of("a\u200bb\x01"
                     "c\u2028d\u00a0e",
                     false),
            (Words{"abc", "d", "e"}));
  // Final sigma; the period does not end the word for it.
  EXPECT_EQ(words_of("ΑΣ ΑΣ.Β", true), (Words{"ας", "ασ", ".", "β"}));
  // Unicode 15.0 has U+1E4D0; U+2FFC is of 15.1: unassigned whatever ICU knows.
  EXPECT_EQ(words_of("a\U0001E4D0b", false), (Words{"a\U0001E4D0b"}));
  EXPECT_EQ(words_of("a\u2FFCb", false), (Words{"ab"}));
  EXPECT_EQ(words_of("a\xFF\xF0\x9F"
                     "b",
                     false),
            (Words{"ab"}));
  EXPECT_EQ(words_of("", true), Words{});
}

class WordPieceFileTest : public FolderTest {
 protected:
  const std::string special_ = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
};

TEST_F(WordPieceFileTest, HasBertsTokensAndContinuations) {
  const auto tokenizer =
      make_tokenizer(spec_of(write("v", special_ + "un\n##aff\n##able\n"), true));
  EXPECT_EQ(tokenizer->name(), "wordpiece");
  EXPECT_EQ(tokenizer->vocab_size(), 8);
  EXPECT_EQ(tokenizer->eod(), std::nullopt);
  EXPECT_EQ(tokenizer->encode("Unaffable ununx [MASK]"), (Ids{5, 6, 7, 1, 1, 1, 1}));
  EXPECT_EQ(tokenizer->decode(Ids{2, 5, 6, 7, 3, 5}), "[CLS] unaffable [SEP] un");
  EXPECT_THROW(tokenizer->decode(Ids{8}), DataError);
  const auto bert = tokenizer->bert_tokens();
  ASSERT_TRUE(bert);
  EXPECT_EQ((Ids{bert->pad, bert->cls, bert->sep, bert->mask}), (Ids{0, 2, 3, 4}));
  EXPECT_FALSE(tokenizer->continues_word(5));
  EXPECT_TRUE(tokenizer->continues_word(6));
  EXPECT_THROW(tokenizer->continues_word(-1), DataError);

  const auto with_eod = make_tokenizer(spec_of(write("e", special_ + "[BOS]\n[EOS]\n"), true));
  EXPECT_EQ(with_eod->eod(), 6);
}

TEST_F(WordPieceFileTest, IdentityHasTheCase) {
  const auto identity = [&](const std::string& content, bool lowercase) {
    return make_tokenizer(spec_of(write("v", content), lowercase))->identity();
  };
  const TokenizerIdentity cased = identity(special_ + "a\n", false);
  EXPECT_TRUE(cased.same_ids(identity("[PAD]\r\n[UNK]\r\n[CLS]\r\n[SEP]\r\n[MASK]\r\na", false)));
  EXPECT_FALSE(cased.same_ids(identity(special_ + "a\n", true)));
  EXPECT_FALSE(cased.same_ids(identity(special_ + "b\n", false)));
}

TEST_F(WordPieceFileTest, ErrorsNameTheFileAndTheReason) {
  const auto error = [&](const std::string& content) {
    return message_of<DataError>([&] { make_tokenizer(spec_of(write("v", content), true)); });
  };
  const std::string file = (folder_ / "v").string();
  EXPECT_EQ(error("[UNK]\n[CLS]\n[SEP]\n[PAD]\na\n"),
            file + ": a wordpiece vocabulary needs the token '[MASK]'");
  EXPECT_EQ(error(special_ + "a\nb\na\n"), file + ":8: token 'a' is also in line 6");
  EXPECT_EQ(error("{\"[UNK]\": 0}"),
            file + ": this is JSON; expected a vocab.txt with a token per line");
  EXPECT_EQ(error(""), file + ": the vocabulary is empty");
}

/// The trainer's rule without its data structures: counts all pairs again for each merge.
Words train_slowly(const std::vector<std::pair<std::string, int>>& counts, Words pieces,
                   std::size_t size) {
  std::vector<std::pair<std::vector<std::size_t>, int>> words;
  const auto id = [&](const std::string& piece) {
    const auto found = std::ranges::find(pieces, piece);
    if (found == pieces.end()) pieces.push_back(piece);
    return static_cast<std::size_t>(std::ranges::find(pieces, piece) - pieces.begin());
  };
  for (const auto& [word, count] : counts) {
    words.emplace_back(std::vector<std::size_t>{}, count);
    for (std::size_t at = 0; at < word.size(); ++at)
      words.back().first.push_back(id((at ? "##" : "") + word.substr(at, 1)));
  }
  while (pieces.size() < size) {
    std::map<std::pair<std::size_t, std::size_t>, int> pairs;
    for (const auto& [word, count] : words)
      for (std::size_t at = 0; at + 1 < word.size(); ++at) pairs[{word[at], word[at + 1]}] += count;
    const auto best = std::ranges::max_element(pairs, {}, [](const auto& p) { return p.second; });
    const auto [left, right] = best->first;
    const std::size_t merged = id(pieces[left] + pieces[right].substr(2));
    for (auto& [word, count] : words)
      for (std::size_t at = 0; at + 1 < word.size(); ++at)
        if (word[at] == left && word[at + 1] == right) {
          word[at] = merged;
          word.erase(word.begin() + static_cast<std::ptrdiff_t>(at) + 1);
        }
  }
  return pieces;
}

TEST(WordPieceTraining, MergesTheMostFrequentPairs) {
  WordPieceTrainer trainer(true);
  std::vector<std::pair<std::string, int>> counts;
  for (int i = 0; i < 120; ++i) {
    std::string word;
    for (int n = i * i % 97 + i; n > 0; n /= 3) word += "abnst"[n * 7 % 5];
    counts.emplace_back(word, 1 + i % 7);
    for (int n = 0; n < counts.back().second; ++n) trainer.add(word + " ");
  }
  Words first = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "n", "s", "t"};
  for (const char* piece : {"##a", "##b", "##n", "##s", "##t"}) first.emplace_back(piece);
  const Words pieces = trainer.train(60, 1000);
  EXPECT_EQ(pieces, train_slowly(counts, first, 60));
  EXPECT_EQ(message_of<DataError>([&] { trainer.train(14, 1000); }),
            "a vocabulary of 14 pieces is too small: the special tokens and the characters of this "
            "corpus alone are 15; give --size 15 or more, or a smaller --alphabet");
  const std::string fewer = message_of<DataError>([&] { trainer.train(5000, 1000); });
  EXPECT_TRUE(fewer.starts_with("this corpus has ")) << fewer;
  EXPECT_NO_THROW(trainer.train(std::stoi(fewer.substr(16)), 1000));
}

TEST(WordPieceTraining, TheAlphabetHasTheMostFrequentCharacters) {
  WordPieceTrainer trainer(false);
  trainer.add("aaaa abab aab b你 你 xa xa");
  const Words pieces = trainer.train(11, 3);
  EXPECT_EQ(Words(pieces.begin() + 5, pieces.begin() + 8), (Words{"a", "b", "x"}));
  EXPECT_EQ(std::ranges::count(pieces, "你"), 0);
  EXPECT_THROW(trainer.train(0, 3), UsageError);
  EXPECT_THROW(trainer.train(11, 0), UsageError);
  EXPECT_EQ(message_of<DataError>([] { WordPieceTrainer(true).train(100, 100); }),
            "there is no text to train on");
}

}  // namespace
}  // namespace trireme::tokenizer
