// tokenizer.json: ids equal to those of the tokenizers library, training equal to its trainer.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "fixture.hpp"
#include "tokenizer/kinds.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::tokenizer {
namespace {

using Ids = std::vector<std::int32_t>;

/// Written by tests/data/bpe/make_golden.py with the tokenizers library.
const nlohmann::json& golden() {
  static const auto json = nlohmann::json::parse(read_file(test_data("bpe/golden.json")));
  return json;
}

class BpeTest : public FolderTest {
 protected:
  std::unique_ptr<Tokenizer> tokenizer(const nlohmann::json& json) const {
    return make_tokenizer(
        {.type = "bpe", .vocab = {}, .merges = {}, .model = write("tokenizer.json", json.dump())});
  }

  /// The tokenizer.json of the case `name`.
  static nlohmann::json json_of(const std::string& name) {
    for (const auto& each : golden()["cases"])
      if (each["name"] == name) return each["tokenizer"];
    throw InternalError("no case '{}'", name);
  }

  /// The message of reading `json`, without the path.
  std::string problem(const nlohmann::json& json) const {
    const std::string text = message_of<DataError>([&] { tokenizer(json); });
    const std::string file = (folder_ / "tokenizer.json: ").string();
    EXPECT_TRUE(text.starts_with(file)) << text;
    return text.substr(std::min(text.size(), file.size()));
  }
};

TEST_F(BpeTest, EqualsTheTokenizersLibrary) {
  int texts = 0;
  for (const auto& each : golden()["cases"]) {
    const auto bpe = tokenizer(each["tokenizer"]);
    for (const auto& entry : each["golden"]) {
      const std::string text = from_hex(entry[0]);
      ASSERT_EQ(bpe->encode(text), entry[1].get<Ids>()) << each["name"] << ": " << entry[0];
      ++texts;
    }
  }
  EXPECT_GT(texts, 900);
}

TEST_F(BpeTest, DecodesWhatItEncodes) {
  for (const char* name : {"gpt2", "llama3"}) {
    const auto bpe = tokenizer(json_of(name));
    for (const auto& each : golden()["cases"])
      for (const auto& entry : each["golden"]) {
        const std::string text = from_hex(entry[0]);
        EXPECT_EQ(bpe->decode(bpe->encode(text)), replace_invalid_utf8(text)) << entry[0];
      }
  }
}

TEST_F(BpeTest, TrainsAsTheTokenizersLibrary) {
  for (const char* pattern : {"llama3", "qwen"}) {
    BpeTrainer trainer(pattern);
    for (const auto& text : golden()["training"]["corpus"]) trainer.add(text.get<std::string>());
    const auto trained = nlohmann::json::parse(trainer.train(560));
    const nlohmann::json& expected = golden()["training"][pattern];
    EXPECT_EQ(trained["model"]["vocab"], expected["vocab"]) << pattern;
    EXPECT_EQ(trained["model"]["merges"], expected["merges"]) << pattern;
    const auto bpe = tokenizer(trained);
    EXPECT_EQ(bpe->vocab_size(), 560);
    EXPECT_EQ(bpe->eod(), 0);
    EXPECT_EQ(bpe->encode("<|endoftext|>"), Ids{0});
  }
  BpeTrainer trainer("llama3");
  EXPECT_EQ(message_of<DataError>([&] { trainer.train(300); }), "there is no text to train on");
  trainer.add("abcd abcd");
  EXPECT_EQ(message_of<UsageError>([&] { trainer.train(256); }),
            "--size 256: <|endoftext|> and the 256 bytes alone are 257 ids");
  EXPECT_NE(message_of<DataError>([&] {
              trainer.train(300);
            }).find("this corpus has 260 tokens that occur twice or more, fewer than 300"),
            std::string::npos);
  EXPECT_EQ(message_of<UsageError>([] { BpeTrainer("gpt4"); }),
            "--pattern gpt4: expected gpt2, llama3 or qwen");
}

TEST_F(BpeTest, FindsTheEndOfDocuments) {
  nlohmann::json json = json_of("llama3");
  EXPECT_EQ(tokenizer(json)->eod(), 0);
  write("tokenizer_config.json", R"({"eos_token": {"content": "<|im_start|>"}})");
  const auto bpe = tokenizer(json);
  EXPECT_EQ(bpe->decode(Ids{*bpe->eod()}), "<|im_start|>");
  write("tokenizer_config.json", R"({"eos_token": "<think>"})");
  EXPECT_EQ(tokenizer(json)->eod(), *bpe->eod() + 1);
}

TEST_F(BpeTest, TellsTokenizersApart) {
  EXPECT_NE(tokenizer(json_of("llama3"))->hash(), tokenizer(json_of("qwen"))->hash());
  nlohmann::json json = json_of("llama3");
  const std::uint64_t before = tokenizer(json)->hash();
  EXPECT_EQ(tokenizer(json)->hash(), before);
  json["model"]["ignore_merges"] = false;
  EXPECT_NE(tokenizer(json)->hash(), before);
}

TEST_F(BpeTest, NamesWhatItDoesNotRead) {
  const nlohmann::json good = json_of("llama3");
  const auto changed = [&](const char* pointer, const nlohmann::json& value) {
    nlohmann::json json = good;
    json[nlohmann::json::json_pointer(pointer)] = value;
    return problem(json);
  };
  EXPECT_EQ(problem(nlohmann::json::parse(R"({"a": 0, "b": 1})")),
            "it is no tokenizer.json: expected a JSON object with a \"model\"");
  EXPECT_EQ(changed("/model/type", "Unigram"),
            "its model is \"Unigram\"; only byte-level BPE is read");
  EXPECT_EQ(changed("/model/byte_fallback", true),
            "its model has byte_fallback, which is SentencePiece's BPE; give its tokenizer.model "
            "to the type sentencepiece");
  EXPECT_EQ(changed("/model/dropout", 0.1), "\"dropout\" of its model is 0.1: not supported");
  EXPECT_EQ(changed("/pre_tokenizer", nullptr),
            "it is no byte-level BPE: its pre_tokenizer has no ByteLevel; give a SentencePiece "
            "model, tokenizer.model, to the type sentencepiece");
  EXPECT_EQ(changed("/pre_tokenizer", {{"type", "Whitespace"}}),
            "the pre_tokenizer Whitespace is not supported (ByteLevel, Split, Digits and sequences "
            "of them are)");
  EXPECT_EQ(changed("/pre_tokenizer/pretokenizers/0/behavior", "Removed"),
            "the pre_tokenizer Split has another behavior than Isolated, or inverts its pattern");
  EXPECT_NE(changed("/pre_tokenizer/pretokenizers/0/pattern/Regex", "(a").find("has an error at 2"),
            std::string::npos);
  EXPECT_EQ(changed("/normalizer", {{"type", "Lowercase"}}),
            "the normalizer Lowercase is not supported (NFC, NFD, NFKC and NFKD are)");
  EXPECT_EQ(changed("/model/merges/0", "a b c"), "merge 0: expected two tokens, got 'a b c'");
  EXPECT_EQ(changed("/model/merges/0", {"a", "zzz"}), "merge 0: its vocabulary has no token 'zzz'");
  EXPECT_EQ(changed("/model/vocab/the", -1),
            "the id of 'the' is -1; expected a whole number up to 16777216");
  EXPECT_EQ(changed("/model/vocab/the", 0), "'the' has the id 0 of another token");
  EXPECT_EQ(changed("/added_tokens", 3), "\"added_tokens\" is missing or no list");
}

}  // namespace
}  // namespace trireme::tokenizer
