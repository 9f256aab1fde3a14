#include "tokenizer/tokenizer.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "fixture.hpp"
#include "tokenizer/kinds.hpp"

namespace trireme::tokenizer {
namespace {

using Ids = std::vector<std::int32_t>;

std::string usage_error(const TokenizerSpec& spec) {
  return message_of<UsageError>([&] { make_tokenizer(spec); });
}

TEST(MakeTokenizer, ErrorsSayWhatIsWrong) {
  EXPECT_EQ(usage_error({"wordpiece", "v", "", ""}),
            "the wordpiece tokenizer needs --lowercase: true for a vocabulary without capitals "
            "(uncased), else false");
  EXPECT_EQ(usage_error({"wordpiece", "", "", "", true}),
            "the wordpiece tokenizer needs --vocab FILE");
  EXPECT_EQ(usage_error({"bytes", "", "", "", false}),
            "the bytes tokenizer has no use for --lowercase");
  EXPECT_EQ(
      usage_error({"gpt3", "", "", ""}),
      "unknown tokenizer 'gpt3': expected gpt2, bpe (tokenizer.json), sentencepiece, wordpiece, "
      "encdec, whitespace or bytes; did you mean 'gpt2'?");
  EXPECT_EQ(usage_error({"gpt2", "v", "", ""}),
            "the gpt2 tokenizer needs --merges FILE; a vocabulary of whole words, without merges, "
            "belongs to the whitespace tokenizer");
  EXPECT_EQ(usage_error({"gpt2", "", "m", ""}), "the gpt2 tokenizer needs --vocab FILE");
  EXPECT_EQ(usage_error({"sentencepiece", "", "", ""}),
            "the sentencepiece tokenizer needs --model FILE");
  EXPECT_EQ(usage_error({"whitespace", "", "", ""}), "the whitespace tokenizer needs --vocab FILE");
  EXPECT_EQ(usage_error({"bytes", "", "", "m"}), "the bytes tokenizer has no use for --model m");
}

TEST(MakeTokenizer, FilesAreRegular) {
  const ScratchFolder scratch;
  const std::string fifo = scratch.path() / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const std::string problem = "' is not a regular file but a ";
  const std::string vocab = test_data("gpt2/vocab.json");
  for (const TokenizerSpec& spec : {TokenizerSpec{"whitespace", fifo, "", ""},
                                    {"gpt2", fifo, test_data("gpt2/merges.txt"), ""},
                                    {"gpt2", vocab, fifo, ""},
                                    {"sentencepiece", "", "", fifo}})
    EXPECT_EQ(message_of<IoError>([&] { make_tokenizer(spec); }), "'" + fifo + problem + "FIFO")
        << spec.type;
  EXPECT_EQ(message_of<IoError>([&] {
              make_tokenizer({"sentencepiece", "", "", "/dev/zero"});
            }),
            "'/dev/zero" + problem + "device");
}

TEST(BytesTokenizer, KeepsAnyBytes) {
  const auto tokenizer = make_tokenizer({"bytes", "", "", ""});
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->eod(), 256);
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
  const Ids ids = tokenizer->encode(all);
  ASSERT_EQ(ids.size(), 256u);
  for (int byte = 0; byte < 256; ++byte) EXPECT_EQ(ids[static_cast<std::size_t>(byte)], byte);
  EXPECT_EQ(tokenizer->decode(ids), all);
  EXPECT_EQ(tokenizer->decode(Ids{'a', 256, 'b'}), "ab");
  EXPECT_THROW(tokenizer->decode(Ids{257}), DataError);
}

class WhitespaceTest : public FolderTest {};

TEST_F(WhitespaceTest, LooksWordsUpWhole) {
  const auto tokenizer = make_tokenizer(
      {"whitespace", write("v", R"({"<unk>": 0, "ACGT": 1, "é": 2, "<|endoftext|>": 3})"), "", ""});
  EXPECT_EQ(tokenizer->vocab_size(), 4);
  EXPECT_EQ(tokenizer->eod(), 3);
  EXPECT_EQ(tokenizer->encode(""), Ids{});
  EXPECT_EQ(tokenizer->encode(" \n\t "), Ids{});
  EXPECT_EQ(tokenizer->encode("  ACGT\u00a0é\u3000ACGTA\x1c"
                              "ACGT\n<|endoftext|>"),
            (Ids{1, 2, 0, 1, 3}));
  EXPECT_EQ(tokenizer->encode("ACGT\u200bé"), Ids{0});
  EXPECT_EQ(tokenizer->encode("\xFF ACGT"), (Ids{0, 1}));
  EXPECT_EQ(tokenizer->decode(Ids{1, 0, 2}), "ACGT <unk> é");
  EXPECT_THROW(tokenizer->decode(Ids{4}), DataError);
}

TEST_F(WhitespaceTest, NeedsItsSpecialTokens) {
  const auto error = [&](const char* vocabulary) {
    return message_of<DataError>([&] {
      make_tokenizer({"whitespace", write("v", vocabulary), "", ""});
    });
  };
  const std::string file = (folder_ / "v").string();
  EXPECT_EQ(error(R"({"a": 0, "<|endoftext|>": 1})"),
            file + ": a whitespace vocabulary needs the token '<unk>'");
  EXPECT_EQ(error(R"({"a": 0, "<unk>": 1})"),
            file + ": a whitespace vocabulary needs the token '<|endoftext|>'");
}

class IdentityTest : public FolderTest {};

TEST_F(IdentityTest, IsOfTheIdsAndNotOfTheFilesSpelling) {
  const auto whitespace = [&](const char* vocabulary) {
    return make_tokenizer({"whitespace", write("v", vocabulary), "", ""})->identity();
  };
  const TokenizerIdentity words = whitespace(R"({"<unk>": 0, "<|endoftext|>": 1, "a": 2})");
  EXPECT_TRUE(words.same_ids(whitespace("{\"a\":2,\n\"<unk>\":0,\"<|endoftext|>\":1}")));
  EXPECT_FALSE(words.same_ids(whitespace(R"({"<unk>": 0, "<|endoftext|>": 1, "b": 2})")));
  EXPECT_FALSE(words.same_ids(whitespace(R"({"<unk>": 2, "<|endoftext|>": 1, "a": 0})")));

  const TokenizerIdentity gpt = gpt2().identity();
  EXPECT_EQ(gpt.type, "gpt2");
  EXPECT_EQ(gpt.vocab_size, 50257);
  const std::string merges = read_file(test_data("gpt2/merges.txt"));
  const auto with_merges = [&](const std::string& text) {
    return make_tokenizer({"gpt2", test_data("gpt2/vocab.json"), write("m", text), ""})->identity();
  };
  EXPECT_TRUE(gpt.same_ids(with_merges("\n" + merges.substr(merges.find('\n') + 1))));
  EXPECT_FALSE(
      gpt.same_ids(with_merges(merges.substr(0, merges.rfind('\n', merges.size() - 2) + 1))));
  EXPECT_EQ(gpt.library, "");
}

TEST_F(IdentityTest, OfAUnigramModelHasTheLibrary) {
  const auto library = [&](const char* type) {
    const std::vector<std::string> lines(50, "the quick brown fox jumps over the lazy dog");
    const std::string model = train_sentencepiece(lines, {285, type}).model;
    return make_tokenizer({"sentencepiece", "", "", write("m.model", model)})->library();
  };
  EXPECT_TRUE(library("unigram").starts_with("sentencepiece ")) << library("unigram");
  EXPECT_EQ(library("bpe"), "");
}

const std::string kBad = "\xEF\xBF\xBD";  // U+FFFD

std::string utf8_of(char32_t code_point) {
  std::string text;
  append_utf8(text, code_point);
  return text;
}

TEST(Utf8, EveryCodePointRoundTrips) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    const std::string text = utf8_of(c);
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
