// EncDecTokenizer against ids of the Python package jieba and of
// tests/data/encdec/make_reference.py.
#include <nlohmann/json.hpp>

#include "fixture.hpp"

namespace trireme::tokenizer {
namespace {

class EncDecTest : public FolderTest {
 protected:
  static std::unique_ptr<Tokenizer> make(const std::filesystem::path& vocab) {
    return make_tokenizer({.type = "encdec", .vocab = vocab, .model = test_data("encdec/jieba")});
  }
};

TEST_F(EncDecTest, IdsAreThoseOfThePythonTokenizer) {
  const auto tokenizer = make(test_data("encdec/vocab.txt"));
  const auto reference = nlohmann::json::parse(read_file(test_data("encdec/reference.json")));
  ASSERT_EQ(reference["cases"].size(), 12u);
  for (const auto& expected : reference["cases"]) {
    const auto text = expected["text"].get<std::string>();
    EXPECT_EQ(tokenizer->encode(text), expected["ids"].get<std::vector<std::int32_t>>())
        << text << ": " << expected["words"].dump();
  }
  EXPECT_EQ(tokenizer->name(), "encdec");
  EXPECT_EQ(tokenizer->eod(), 1);
  EXPECT_TRUE(tokenizer->encode(" <n> ").empty());
  EXPECT_TRUE(tokenizer->encode("").empty());
  EXPECT_EQ(tokenizer->encode(std::string(201, 'x')), std::vector<std::int32_t>{0}) << "<unk>";
}

TEST_F(EncDecTest, DecodesWhatTheVocabularyHas) {
  const auto tokenizer = make(test_data("encdec/vocab.txt"));
  for (const char* text : {"我来到北京清华大学", "hello world 你好 world hello", "caf"})
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
}

TEST_F(EncDecTest, VocabulariesMayBeJson) {
  std::istringstream lines(read_file(test_data("encdec/vocab.txt")));
  nlohmann::json json;
  for (std::string line; std::getline(lines, line);) json[line] = json.size();
  const auto path = write("vocab.json", json.dump());
  const auto one = make(path), other = make(test_data("encdec/vocab.txt"));
  EXPECT_EQ(one->identity().hash, other->identity().hash);
  EXPECT_EQ(one->encode("我来到北京"), other->encode("我来到北京"));
}

TEST_F(EncDecTest, WhatIsMissingIsNamed) {
  const auto vocab = write("vocab.txt", "<eod>\na\n");
  EXPECT_EQ(message_of<DataError>([&] { make(vocab); }),
            vocab + ": an encdec vocabulary needs the token '<unk>'");
  EXPECT_EQ(message_of<UsageError>([&] { make_tokenizer({.type = "encdec", .vocab = vocab}); }),
            "the encdec tokenizer needs --model FILE: the folder of the Python package jieba "
            "(Debian: python3-jieba)");
  std::filesystem::create_directories(folder_ / "jieba/finalseg");
  for (const char* name : {"start", "trans", "emit"})
    write(std::string("jieba/finalseg/prob_") + name + ".py", "P={'B': -1.0}\n");
  write("jieba/dict.txt", "one 1 n\ntwo\n");
  const auto open = [&] {
    make_tokenizer(
        {.type = "encdec", .vocab = test_data("encdec/vocab.txt"), .model = folder_ / "jieba"});
  };
  EXPECT_EQ(message_of<DataError>(open),
            (folder_ / "jieba/dict.txt").string() + ":2: expected a word and its count");
  write("jieba/finalseg/prob_emit.py", "P={'B': {'x' -1.0}}\n");
  EXPECT_EQ(message_of<DataError>(open),
            (folder_ / "jieba/finalseg/prob_emit.py").string() +
                ": expected a table P = {'B': number or {'character': number}}");
}

}  // namespace
}  // namespace trireme::tokenizer
