#include "tokenizer/preprocess/preprocess.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "fixture.hpp"

namespace trireme::tokenizer {
namespace {

/// Standard input read from a file while this lives.
class StandardInput {
 public:
  explicit StandardInput(const std::string& file) : saved_(::dup(STDIN_FILENO)) {
    const int descriptor = ::open(file.c_str(), O_RDONLY);
    ::dup2(descriptor, STDIN_FILENO);
    ::close(descriptor);
  }
  ~StandardInput() {
    ::dup2(saved_, STDIN_FILENO);
    ::close(saved_);
  }

 private:
  int saved_;
};

class PreprocessTest : public FolderTest {
 protected:
  PreprocessOptions options(const std::string& input) const {
    PreprocessOptions options;
    options.source.inputs = {input};
    options.output = (folder_ / "out").string();
    return options;
  }
  std::string bin() const { return read_file(folder_ / "out_text_document.bin"); }
  std::string idx() const { return read_file(folder_ / "out_text_document.idx"); }
  std::vector<std::uint16_t> tokens() const {
    const std::string bytes = bin();
    std::vector<std::uint16_t> tokens(bytes.size() / 2);
    std::memcpy(tokens.data(), bytes.data(), bytes.size());
    return tokens;
  }
  /// The sequences of a dataset of bytes.
  std::vector<std::string> read_sequences(const std::string& name) const {
    const std::string ids = read_file(folder_ / (name + ".bin"));
    const std::string idx = read_file(folder_ / (name + ".idx"));
    std::uint64_t count = 0;
    std::memcpy(&count, idx.data() + 18, sizeof count);
    std::vector<std::string> sequences(count);
    std::size_t at = 0;
    for (std::size_t i = 0; i < count; ++i) {
      std::int32_t length = 0;
      std::memcpy(&length, idx.data() + 34 + 4 * i, sizeof length);
      for (; length > 0; --length, at += 2) sequences[i].push_back(ids[at]);
    }
    return sequences;
  }
  bool wrote_nothing() const {
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      if (entry.path().filename().string().starts_with("out")) return false;
    return true;
  }

  const std::unique_ptr<Tokenizer> bytes_ = make_tokenizer({"bytes", "", "", ""});
};

using Tokens = std::vector<std::uint16_t>;

TEST_F(PreprocessTest, PresplitSentencesAreSequences) {
  PreprocessOptions work = options(write(
      "a.jsonl", "{\"text\": \"ab\\r\\n\\n  \\nc\"}\n{\"text\": \"\\n\"}\n{\"text\": \"d\\n\"}\n"));
  work.presplit_sentences = true;
  work.append_eod = true;
  const PreprocessSummary summary = preprocess(*bytes_, work);
  EXPECT_EQ(summary.documents, 3u);
  EXPECT_EQ(summary.tokens, 6u);
  const std::string bin = read_file(folder_ / "out_text_sentence.bin");
  Tokens tokens(bin.size() / 2);
  std::memcpy(tokens.data(), bin.data(), bin.size());
  EXPECT_EQ(tokens, (Tokens{'a', 'b', 'c', 256, 'd', 256}));
  // Sequences of 2, 2 and 2 tokens; documents of 2, 0 and 1 sequences.
  const std::string idx = read_file(folder_ / "out_text_sentence.idx");
  const auto number = [&](std::size_t at, auto value) {
    std::memcpy(&value, idx.data() + at, sizeof value);
    return value;
  };
  ASSERT_EQ(number(18, std::uint64_t{}), 3u);
  ASSERT_EQ(number(26, std::uint64_t{}), 4u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(number(34 + 4 * i, std::int32_t{}), 2);
  const std::int64_t boundaries[] = {0, 2, 2, 3};
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(number(34 + 12 * 3 + 8 * i, std::int64_t{}), boundaries[i]) << i;
}

TEST_F(PreprocessTest, PresplitSentencesNeedDocumentsOfSeveralLines) {
  PreprocessOptions work = options(write("a.txt", "one\ntwo\n"));
  work.presplit_sentences = true;
  EXPECT_EQ(message_of<UsageError>([&] { preprocess(*bytes_, work); }),
            "--presplit-sentences: a document of '" + (folder_ / "a.txt").string() +
                "' is one line; give --document file, or JSON lines");
  EXPECT_TRUE(wrote_nothing());
  work.source.format = DocumentFormat::text_files;
  EXPECT_EQ(preprocess(*bytes_, work).documents, 1u);
}

TEST_F(PreprocessTest, SplitSentencesAreSequences) {
  const std::string input = write("a.jsonl", R"({"text": "Mr. A came.  He\nleft!"})"
                                             "\n"
                                             R"({"text": " "})"
                                             "\n"
                                             R"({"text": "b"})"
                                             "\n");
  PreprocessOptions work = options(input);
  work.split_sentences = &sentence_rules("english");
  const PreprocessSummary summary = preprocess(*bytes_, work);
  EXPECT_EQ(summary.dataset, folder_ / "out_text_sentence");
  EXPECT_EQ(summary.documents, 3u);
  EXPECT_EQ(read_sequences("out_text_sentence"),
            (std::vector<std::string>{"Mr. A came.", "He\nleft!", "b"}));
  auto info = read_dataset_info(folder_ / "out_text_sentence");
  EXPECT_EQ(info->options->split_sentences, "en");
  EXPECT_FALSE(info->options->keep_newlines);

  work.keep_newlines = true;
  preprocess(*bytes_, work);
  EXPECT_EQ(read_sequences("out_text_sentence"),
            (std::vector<std::string>{"Mr. A came.  ", "He\nleft!", "b"}));
  info = read_dataset_info(folder_ / "out_text_sentence");
  EXPECT_TRUE(info->options->keep_newlines);

  work.presplit_sentences = true;
  EXPECT_THROW(preprocess(*bytes_, work), UsageError);
  work = options(input);
  work.keep_newlines = true;
  EXPECT_THROW(preprocess(*bytes_, work), UsageError);
}

TEST_F(PreprocessTest, WarnsOfUnsplitDocumentsForBert) {
  const auto bert = make_tokenizer(
      {.type = "wordpiece", .vocab = test_data("wordpiece/vocab.txt"), .lowercase = true});
  const auto log_of = [&](const Tokenizer& tokenizer, const SentenceRules* rules) {
    PreprocessOptions work = options(write("a.txt", "the quick\n"));
    work.split_sentences = rules;
    work.log = std::fopen((folder_ / "log").c_str(), "w");
    preprocess(tokenizer, work);
    std::fclose(work.log);
    return read_file(folder_ / "log");
  };
  EXPECT_TRUE(log_of(*bert, nullptr).starts_with("warning: this tokenizer has BERT's tokens"));
  EXPECT_EQ(log_of(*bert, &sentence_rules("en")), "");
  EXPECT_EQ(log_of(*bytes_, nullptr), "");
}

TEST_F(PreprocessTest, PresplitWritesASentencePerLine) {
  PresplitOptions work;
  work.source.inputs = {
      write("a.jsonl", R"({"id": 7, "text": "Mr. A\ncame. He “left”!\n\n", "x": "é\u0001"})"
                       "\n"
                       R"({"text": ""})"
                       "\n"),
      write("b.txt", "One. Two.\n")};
  work.output = folder_ / "out.jsonl";
  work.rules = &sentence_rules("en");
  PresplitSummary summary = presplit(work);
  EXPECT_EQ(summary.documents, 3u);
  EXPECT_EQ(summary.sentences, 5u);
  EXPECT_EQ(read_file(work.output),
            R"({"id": 7, "text": "Mr. A\ncame.\nHe “left”!", "x": "é\u0001"})"
            "\n"
            R"({"text": ""})"
            "\n"
            R"({"text":"One.\nTwo."})"
            "\n");
  work.standardize_punctuation = true;
  presplit(work);
  EXPECT_NE(read_file(work.output).find(R"(He \"left\"!)"), std::string::npos);

  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  const std::string head =
      R"({ "id":123456789012345678901234567890, "x" : [1.0, NaN, {"text": "no"}], "s":"\ud800", )"
      R"("deep":)" +
      deep + R"(, "text": )";
  work.source.inputs = {write("odd.jsonl", head + R"("\u004Fne. Two." , "last":0.10})")};
  presplit(work);
  EXPECT_TRUE(read_file(work.output) == head + R"("One.\nTwo." , "last":0.10})" + "\n")
      << "other keys keep their bytes";
}

TEST_F(PreprocessTest, AppendsTheEndOfDocument) {
  PreprocessOptions work =
      options(write("a.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"\"}\n{\"text\": \"c\"}\n"));
  auto summary = preprocess(*bytes_, work);
  EXPECT_EQ(tokens(), (Tokens{'a', 'b', 'c'}));
  EXPECT_EQ(summary.dataset, folder_ / "out_text_document");
  EXPECT_EQ(summary.documents, 3u);
  EXPECT_EQ(summary.tokens, 3u);
  EXPECT_EQ(summary.bytes, 42u);

  work.append_eod = true;
  summary = preprocess(*bytes_, work);
  // As in Megatron-LM an empty document gets no end and no sequence.
  EXPECT_EQ(tokens(), (Tokens{'a', 'b', 256, 'c', 256}));
  EXPECT_EQ(summary.tokens, 5u);
  EXPECT_EQ(idx().size(), 34u + 12 * 2 + 8 * 4);
}

TEST_F(PreprocessTest, RecordsItsTokenizerWithTheDataset) {
  PreprocessOptions work = options(write("a.txt", "ab\n\nc\n"));
  work.append_eod = true;
  EXPECT_EQ(preprocess(*bytes_, work).vocab_size, 257);
  const auto info = read_dataset_info(folder_ / "out_text_document");
  ASSERT_TRUE(info);
  EXPECT_TRUE(info->tokenizer.same_ids(bytes_->identity()));
  EXPECT_EQ(info->largest_id, 256);
  EXPECT_EQ(info->documents, 2u);
  EXPECT_EQ(info->tokens, 5u);
  EXPECT_EQ(*info->options, (DatasetInfo::Options{.key = "text", .append_eod = true}));
  // As people and other programs read it.
  const auto json = nlohmann::json::parse(read_file(folder_ / "out_text_document.json"));
  EXPECT_EQ(json["tokenizer"]["type"], "bytes");
  EXPECT_EQ(json["tokenizer"]["vocabulary"], 257);
  EXPECT_EQ(json["options"]["append_eod"], true);

  write("out_text_document.json", R"({"trireme_dataset": 1, "tokens": 3})");
  EXPECT_TRUE(message_of<DataError>([&] { read_dataset_info(folder_ / "out_text_document"); })
                  .starts_with("'" + (folder_ / "out_text_document.json").string() +
                               "' is damaged: key 'tokenizer' not found"));
  write("out_text_document.json", R"({"text": "a corpus"})");
  EXPECT_EQ(read_dataset_info(folder_ / "out_text_document"), std::nullopt);
}

TEST_F(PreprocessTest, BlankLinesAreDocumentsOnRequest) {
  PreprocessOptions work = options(write("a.txt", "ab\n\n \nc\n"));
  work.append_eod = true;
  EXPECT_EQ(preprocess(*bytes_, work).documents, 2u);
  work.source.keep_blank_lines = true;
  EXPECT_EQ(preprocess(*bytes_, work).documents, 4u);
  EXPECT_EQ(tokens(), (Tokens{'a', 'b', 256, ' ', 256, 'c', 256}));
  EXPECT_EQ(idx().size(), 34u + 12 * 3 + 8 * 5) << "a document without a sequence";
}

TEST_F(PreprocessTest, NamesCarryTheKey) {
  PreprocessOptions work = options(write("a.jsonl", "{\"body\": \"ab\"}\n"));
  work.source.key = "body";
  preprocess(*bytes_, work);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "out_body_document.idx"));
}

TEST_F(PreprocessTest, AnyNumberOfWorkersWritesTheSameBytes) {
  std::mt19937 random(21);
  std::string lines;
  while (lines.size() < 6'000'000) {
    std::string text;
    for (unsigned words = random() % 200; words > 0; --words)
      text += fmt::format("w{}{}", random() % 5000, random() % 9 ? " " : " é\n");
    lines += nlohmann::json{{"text", text}}.dump() + "\n";
  }
  PreprocessOptions work = options(write("a.jsonl", lines));
  work.append_eod = true;
  std::string first_bin, first_idx;
  for (const int workers : {1, 2, 4}) {
    work.workers = workers;
    preprocess(gpt2(), work);
    if (workers == 1) {
      first_bin = bin();
      first_idx = idx();
      continue;
    }
    EXPECT_TRUE(bin() == first_bin) << workers << " workers";
    EXPECT_TRUE(idx() == first_idx) << workers << " workers";
  }
  // And they are the ids of the documents in their order.
  const auto text = nlohmann::json::parse(lines.substr(0, lines.find('\n')))["text"];
  std::vector<std::int32_t> expected = gpt2().encode(text.get<std::string>());
  expected.push_back(50256);
  const Tokens all = tokens();
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), all.begin()));
}

TEST_F(PreprocessTest, ReadsStandardInput) {
  const StandardInput input(write("a", "one\n\ntwo\n"));
  PreprocessOptions work = options("-");
  work.source.format = DocumentFormat::text_lines;
  EXPECT_EQ(preprocess(*bytes_, work).documents, 2u);
  EXPECT_EQ(tokens(), (Tokens{'o', 'n', 'e', 't', 'w', 'o'}));
}

TEST_F(PreprocessTest, ABadLineStopsAndLeavesNothing) {
  std::string lines;
  for (int i = 1; i <= 100000; ++i)
    lines += i == 60001 || i == 60007 || i == 90000 ? "bad\n"
                                                    : "{\"text\": \"document of a few bytes\"}\n";
  const std::string file = write("a.jsonl", lines);
  for (const int workers : {1, 4}) {
    PreprocessOptions work = options(file);
    work.workers = workers;
    const std::string message = message_of<DataError>([&] { preprocess(*bytes_, work); });
    EXPECT_EQ(message.find(file + ":60001: not JSON at byte 1: "), 0u) << message;
    EXPECT_TRUE(wrote_nothing());
  }
}

TEST_F(PreprocessTest, SkippedLinesAreCountedAndShown) {
  std::string lines = "{\"text\": \"a\"}\n";
  for (int i = 0; i < 12; ++i) lines += "{\"text\": 7}\n";
  const std::string file = write("a.jsonl", lines + "{\"text\": \"b\"}\n");
  PreprocessOptions work = options(file);
  work.skip_bad = true;
  work.log = std::fopen((folder_ / "log").c_str(), "w");
  const auto summary = preprocess(*bytes_, work);
  std::fclose(work.log);
  EXPECT_EQ(summary.skipped, 12u);
  EXPECT_EQ(summary.documents, 2u);
  EXPECT_EQ(tokens(), (Tokens{'a', 'b'}));
  const std::string log = read_file(folder_ / "log");
  EXPECT_EQ(log.find("skipped: " + file + ":2: 'text' is a number, not a string\n"), 0u) << log;
  EXPECT_NE(log.find(":11: "), std::string::npos);
  EXPECT_EQ(log.find(":12: "), std::string::npos);
  EXPECT_TRUE(log.ends_with("further unreadable documents are counted without a message\n")) << log;
}

TEST_F(PreprocessTest, RefusesWhatCannotBe) {
  PreprocessOptions work = options(write("blank.txt", "\n \n"));
  EXPECT_EQ(message_of<DataError>([&] { preprocess(*bytes_, work); }),
            (folder_ / "blank.txt").string() + ": no document to write");
  EXPECT_TRUE(wrote_nothing());
  work.workers = 0;
  EXPECT_THROW(preprocess(*bytes_, work), UsageError);

  // A vocabulary cut down to the bytes has no end of document.
  auto vocabulary = nlohmann::json::parse(read_file(test_data("gpt2/vocab.json")));
  for (auto token = vocabulary.begin(); token != vocabulary.end();)
    token = token->get<int>() < 256 ? std::next(token) : vocabulary.erase(token);
  const auto tokenizer =
      make_tokenizer({"gpt2", write("v", vocabulary.dump()), write("m", "#version: 0.2\n"), ""});
  work = options(write("a.txt", "a\n"));
  work.append_eod = true;
  EXPECT_EQ(message_of<UsageError>([&] { preprocess(*tokenizer, work); }),
            "this gpt2 vocabulary has no token to append at the end of a document "
            "('<|endoftext|>')");
  EXPECT_TRUE(wrote_nothing());
}

}  // namespace
}  // namespace trireme::tokenizer
