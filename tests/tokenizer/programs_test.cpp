// trireme-preprocess and trireme-tokenizer as they are called.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdlib>

#include "fixture.hpp"

namespace trireme::tokenizer {
namespace {

class ProgramsTest : public FolderTest {
 protected:
  /// Runs `command` (a program of the build and its options, through the shell); keeps what it
  /// printed and returns its exit code.
  int run(const std::string& command) {
    const std::size_t blank = std::min(command.find(' '), command.size());
    const std::string line =
        fmt::format("cd '{}' && exec >out 2>err && '{}/bin/{}'{}", folder_.string(),
                    TRIREME_BINARY_DIR, command.substr(0, blank), command.substr(blank));
    const int status = std::system(line.c_str());
    out_ = read_file(folder_ / "out");
    err_ = read_file(folder_ / "err");
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  std::string out_, err_;
};

TEST_F(ProgramsTest, PreprocessWritesADatasetAndSaysSo) {
  write("a.txt", "ab\nc\n");
  EXPECT_EQ(run("trireme-preprocess --input a.txt --output x/y --tokenizer bytes --append-eod"), 0)
      << err_;
  EXPECT_EQ(out_.find("x/y_text_document.{bin,idx}: 2 documents, 5 tokens from 5 bytes in "), 0u)
      << out_;
  EXPECT_NE(out_.find(", vocabulary of 257 ids, 0 bad documents skipped"), std::string::npos);
  EXPECT_EQ(read_file(folder_ / "x/y_text_document.bin").size(), 10u);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "x/y_text_document.json"));
  EXPECT_EQ(run("trireme-preprocess merge --output x/two x/y_text_document x/y_text_document"), 0);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "x/two.json"));
  EXPECT_EQ(run("trireme-preprocess --input - --format text --output z --tokenizer bytes <a.txt"),
            0);
  EXPECT_EQ(read_file(folder_ / "z_text_document.bin").size(), 6u);
}

TEST_F(ProgramsTest, WholeFilesOfATarAreTextsButForJsonLines) {
  write("a.txt", "one\ntwo\n");
  write("b.jsonl", "{\"text\": \"three\"}\n{\"text\": \"four\"}\n");
  ASSERT_EQ(std::system(("cd '" + folder_.string() + "' && tar cf c.tar a.txt b.jsonl").c_str()),
            0);
  EXPECT_EQ(run("trireme-preprocess --output t --tokenizer bytes --input c.tar --document file"),
            0);
  EXPECT_NE(out_.find(": 3 documents, 17 tokens"), std::string::npos) << out_;
}

TEST_F(ProgramsTest, PreprocessErrorsHaveTheirExitCodes) {
  const std::string good = "trireme-preprocess --output y --tokenizer bytes --input ";
  write("a.txt", "a\n");
  write("bad.jsonl", "{\"text\": \"a\"}\nnonsense\n");
  EXPECT_EQ(run(good + "bad.jsonl"), 65);
  EXPECT_EQ(err_.find("trireme-preprocess: bad.jsonl:2: not JSON at byte 2: "), 0u) << err_;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "y_text_document.bin.part"));
  EXPECT_EQ(run(good + "bad.jsonl --skip-bad"), 0);
  EXPECT_TRUE(out_.ends_with(" 1 bad document skipped\n")) << out_;
  EXPECT_EQ(run("trireme-preprocess --output y --tokenizer bpe --model bpe.json --train-tokenizer "
                "257 --skip-bad --input bad.jsonl"),
            0)
      << err_;
  write("nul.jsonl", std::string("{\"text\": \"a\"}\0{\"text\": \"lost\"}\n", 30));
  EXPECT_EQ(run(good + "nul.jsonl"), 65);
  EXPECT_EQ(err_, "trireme-preprocess: nul.jsonl:1: not JSON at byte 14: a NUL\n");
  write("ids.txt", std::string("[72]\0[1]\n", 9));
  EXPECT_EQ(run("trireme-tokenizer decode --tokenizer bytes <ids.txt"), 65);
  EXPECT_EQ(run(good + "absent.txt"), 74);
  EXPECT_EQ(err_, "trireme-preprocess: cannot open 'absent.txt': No such file or directory\n");
  const std::pair<const char*, const char*> usage[] = {
      {"a.txt --work 3", "unrecognised option '--work'; did you mean '--workers'?"},
      {"a.txt --workers 0", "--workers 0: must be at least 1"},
      {"a.txt --split-sentences --presplit-sentences",
       "--split-sentences and --presplit-sentences exclude each other"},
      {"a.txt --keep-newlines", "--keep-newlines is for --split-sentences"},
      {"a.txt --language de", "--language is for --split-sentences"},
      {"a.txt --train-tokenizer 300",
       "--train-tokenizer needs --tokenizer sentencepiece or bpe with --model, or wordpiece with "
       "--vocab: the file to write"},
      {"a.txt --format jsonl --keep-blank-lines",
       "--keep-blank-lines is for plain text, not for --format jsonl"},
      {"a.txt --document page", "--document page: expected line or file"},
      {"a.txt --format csv", "--format csv: expected jsonl or text"},
      {"a.txt --format jsonl --document file",
       "--document file is for plain text, not for --format jsonl"},
      {"a.jsonl --document file",
       "--document file: 'a.jsonl' has a document per line; leave the option out, or give --format "
       "text"},
      {"a.json --document file",
       "--document file: 'a.json' has a document per line; leave the option out, or give --format "
       "text"},
      {"a.jsonl.gz --keep-blank-lines", "--keep-blank-lines is for plain text, not for JSON lines"},
      {"a.txt --model m", "the bytes tokenizer has no use for --model m"}};
  for (const auto& [options, message] : usage) {
    EXPECT_EQ(run(good + options), 2) << options;
    EXPECT_EQ(err_, fmt::format(
                        "trireme-preprocess: {}\n'trireme-preprocess --help' lists the options.\n",
                        message));
  }
  EXPECT_EQ(run("trireme-preprocess --input a.txt --output y --tokenizer wordpiece --vocab v"), 2);
  EXPECT_NE(err_.find("the wordpiece tokenizer needs --lowercase: true for"), std::string::npos)
      << err_;
}

TEST_F(ProgramsTest, WhatIsNoTextIsNamedWithTheWayOut) {
  const std::string to = "trireme-preprocess --output y --tokenizer bytes --input ";
  std::filesystem::create_directory(folder_ / "texts");
  EXPECT_EQ(run(to + "texts"), 74);
  EXPECT_EQ(err_,
            "trireme-preprocess: 'texts' is a folder; name the files in it, as texts/*.jsonl does "
            "in a shell\n");
  write("x.parquet", "PAR1\x15\x04\xff");
  EXPECT_EQ(run(to + "x.parquet"), 65);
  EXPECT_EQ(err_.find("trireme-preprocess: x.parquet: a Parquet file; write its column"), 0u)
      << err_;
  write("x.zip", "PK\x03\x04");
  EXPECT_EQ(run(to + "x.zip"), 65);
  EXPECT_EQ(err_.find("trireme-preprocess: x.zip: a zip archive; unpack it"), 0u) << err_;
  write("tokenizer.json", R"({"version": "1.0", "model": {"vocab": {"a": 0}}})");
  EXPECT_EQ(run("trireme-tokenizer encode --tokenizer gpt2 --vocab tokenizer.json --merges x.zip "
                "</dev/null"),
            65);
  EXPECT_EQ(err_.find("trireme-tokenizer: tokenizer.json: this is Hugging Face's tokenizer.json"),
            0u)
      << err_;
  write("words.json", R"({"<unk>": 0, "<|endoftext|>": 1, "word": 2})");
  EXPECT_EQ(run("trireme-tokenizer encode --tokenizer gpt2 --vocab words.json </dev/null"), 2);
  EXPECT_NE(err_.find("belongs to the whitespace tokenizer"), std::string::npos) << err_;
  EXPECT_EQ(run("trireme-tokenizer encode --tokenizer gpt2 --vocab words.json --merges x.zip "
                "</dev/null"),
            65);
  EXPECT_NE(err_.find("belongs to the whitespace tokenizer"), std::string::npos) << err_;
  EXPECT_EQ(run("trireme-tokenizer encode --tokenizer sentencepiece --model words.json </dev/null"),
            65);
  EXPECT_EQ(err_.find("trireme-tokenizer: words.json: not a SentencePiece model: "), 0u) << err_;
  EXPECT_EQ(err_.find("ParseFromArray"), std::string::npos) << err_;
}

TEST_F(ProgramsTest, TokenizerEncodesAndDecodes) {
  const std::string gpt2_options =
      fmt::format("--tokenizer gpt2 --vocab '{}' --merges '{}'",
                  test_data("gpt2/vocab.json").string(), test_data("gpt2/merges.txt").string());
  write("in", "Hello world\n\nit's 日");
  EXPECT_EQ(run("trireme-tokenizer encode " + gpt2_options + " <in"), 0) << err_;
  EXPECT_EQ(out_, "[15496, 995]\n[]\n[270, 338, 10545, 245, 98]\n");
  write("ids", out_);
  EXPECT_EQ(run("trireme-tokenizer decode " + gpt2_options + " <ids"), 0) << err_;
  EXPECT_EQ(out_, "Hello world\n\nit's 日\n");
  for (const char* line : {"[1, -1]", "[1", "{\"a\": 1}", "7", "", "[1.5]", "[[1]]"}) {
    write("ids", std::string("[1]\n") + line + "\n");
    EXPECT_EQ(run("trireme-tokenizer decode --tokenizer bytes <ids"), 65) << line;
    EXPECT_EQ(
        err_,
        "trireme-tokenizer: standard input:2: expected a JSON list of ids, such as [464, 3290]\n");
  }
  write("ids", "[257]\n");
  EXPECT_EQ(run("trireme-tokenizer decode --tokenizer bytes <ids"), 65);
  EXPECT_EQ(run("trireme-tokenizer"), 2);
  EXPECT_EQ(run("trireme-tokenizer guess"), 2);
  EXPECT_EQ(
      err_.find("trireme-tokenizer: unknown command 'guess': expected encode, decode or train\n"),
      0u)
      << err_;
}

TEST_F(ProgramsTest, TokenizerTrains) {
  std::string lines;
  for (int i = 0; i < 300; ++i) lines += fmt::format("the number {} and its square {}\n", i, i * i);
  write("a.txt", lines);
  EXPECT_EQ(run("trireme-tokenizer train --input a.txt --output a.model --size 330"), 0) << err_;
  EXPECT_EQ(out_.find("a.model: 330 pieces (unigram) from 300 lines, "), 0u) << out_;
  EXPECT_TRUE(read_file(folder_ / "a.vocab").starts_with("<unk>\t0\n<|endoftext|>\t0\n"));
  EXPECT_EQ(err_, "");
  EXPECT_EQ(run("trireme-tokenizer train --input a.txt --output new/deep/a.model --size 330"), 0)
      << err_;
  EXPECT_EQ(read_file(folder_ / "new/deep/a.model"), read_file(folder_ / "a.model"));
  EXPECT_EQ(run("trireme-tokenizer train --input a.txt --output a.txt/a.model --size 330"), 74);
  EXPECT_EQ(err_, "trireme-tokenizer: cannot create folder 'a.txt': Not a directory\n");
  EXPECT_EQ(
      run("trireme-preprocess --input a.txt --output y --tokenizer sentencepiece --model a.model"),
      0);
  EXPECT_EQ(run("trireme-tokenizer train --input a.txt --output b.model --size 100000"), 65);
  EXPECT_NE(err_.find("this corpus gives at most "), std::string::npos) << err_;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "b.model"));
  for (const int size : {1, 10}) {
    EXPECT_EQ(
        run(fmt::format("trireme-tokenizer train --input a.txt --output b.model --size {}", size)),
        65);
    EXPECT_EQ(
        err_.find(fmt::format("trireme-tokenizer: a model of {} pieces is too small: ", size)), 0u)
        << err_;
  }
  const std::size_t at = err_.find("give --size ");
  ASSERT_NE(at, std::string::npos) << err_;
  const std::string fewest = std::to_string(std::stoi(err_.substr(at + 12)));
  EXPECT_EQ(run("trireme-tokenizer train --input a.txt --output b.model --size " + fewest), 0)
      << err_;
}

TEST_F(ProgramsTest, TokenizerTrainsWordPiece) {
  std::string lines;
  for (int i = 0; i < 300; ++i) lines += fmt::format("The Number {} and its Square {}\n", i, i * i);
  write("a.txt", lines);
  const std::string train = "trireme-tokenizer train --input a.txt --output v.txt ";
  EXPECT_EQ(run(train + "--type wordpiece --lowercase true --size 150"), 0) << err_;
  EXPECT_EQ(out_.find("v.txt: 150 pieces (wordpiece) from 300 lines, "), 0u) << out_;
  write("in", "The number\n");
  EXPECT_EQ(
      run("trireme-tokenizer encode --tokenizer wordpiece --vocab v.txt --lowercase true <in"), 0);
  write("ids", out_);
  EXPECT_EQ(
      run("trireme-tokenizer decode --tokenizer wordpiece --vocab v.txt --lowercase true <ids"), 0);
  EXPECT_EQ(out_, "the number\n");
  const std::pair<const char*, const char*> usage[] = {
      {"--type wordpiece --size 150", "the wordpiece tokenizer needs --lowercase"},
      {"--size 300 --lowercase true", "the sentencepiece tokenizer has no use for --lowercase"},
      {"--size 300 --alphabet 9", "--alphabet is for wordpiece, not for sentencepiece"},
      {"--type wordpiece --lowercase true --size 150 --bert-tokens",
       "--model-type and --bert-tokens are for sentencepiece, not for wordpiece"},
      {"--type gpt2 --size 300", "a tokenizer of type 'gpt2' cannot be trained"}};
  for (const auto& [options, message] : usage) {
    EXPECT_EQ(run(train + options), 2) << options;
    EXPECT_EQ(err_.find(std::string("trireme-tokenizer: ") + message), 0u) << err_;
  }
}

TEST_F(ProgramsTest, PreprocessTrainsAMissingTokenizer) {
  std::string lines;
  for (int i = 0; i < 300; ++i)
    lines += fmt::format("The number is {}. Its square is {}.\n", i, i * i);
  write("a.txt", lines);
  const std::string command =
      "trireme-preprocess --input a.txt --output y --split-sentences --tokenizer ";
  for (const std::string tokenizer :
       {"sentencepiece --model a.model --bert-tokens --train-tokenizer 330",
        "wordpiece --vocab v.txt --lowercase true --train-tokenizer 100"}) {
    EXPECT_EQ(run(command + tokenizer), 0) << err_;
    EXPECT_NE(out_.find(" pieces from 300 lines in "), std::string::npos) << out_;
    EXPECT_NE(out_.find("y_text_sentence.{bin,idx}: 300 documents, "), std::string::npos) << out_;
    const std::string first = read_file(folder_ / "y_text_sentence.bin");
    EXPECT_EQ(run(command + tokenizer), 0) << err_;
    EXPECT_EQ(out_.find(" pieces from "), std::string::npos) << "trained again: " << out_;
    EXPECT_EQ(read_file(folder_ / "y_text_sentence.bin"), first);
  }
  EXPECT_TRUE(std::filesystem::exists(folder_ / "a.vocab"));
  ASSERT_EQ(::mkfifo((folder_ / "fifo").c_str(), 0600), 0);
  for (const char* input : {"-", "fifo"}) {
    EXPECT_EQ(run(fmt::format("trireme-preprocess --input {} --output y --tokenizer wordpiece "
                              "--vocab w.txt --lowercase true --train-tokenizer 100 <a.txt",
                              input)),
              2);
    EXPECT_EQ(err_.find("trireme-preprocess: --train-tokenizer reads the input more than once: "),
              0u)
        << err_;
  }
  for (const char* file : {"z_text_document.bin", "./z_text_document.json"}) {
    EXPECT_EQ(run(fmt::format("trireme-preprocess --input a.txt --output z --tokenizer bpe --model "
                              "{} --train-tokenizer 300",
                              file)),
              2);
    EXPECT_EQ(err_.find(fmt::format("trireme-preprocess: the dataset would replace '{}'", file)),
              0u)
        << err_;
    EXPECT_FALSE(std::filesystem::exists(folder_ / file));
  }
  write("z_text_document.idx", "text\n");
  EXPECT_EQ(run("trireme-preprocess --input z_text_document.idx --output z --tokenizer bytes"), 2);
  EXPECT_EQ(read_file(folder_ / "z_text_document.idx"), "text\n");
  EXPECT_EQ(run("trireme-preprocess presplit --input a.txt --output s.jsonl --language english"), 0)
      << err_;
  EXPECT_EQ(out_, "s.jsonl: 300 documents, 600 sentences\n");
}

TEST_F(ProgramsTest, HelpAndVersionNeedNothingElse) {
  for (const std::string program : {"trireme-preprocess", "trireme-tokenizer"}) {
    EXPECT_EQ(run(program + " --help"), 0);
    EXPECT_EQ(out_.find("Usage: " + program), 0u);
    EXPECT_EQ(run(program + " --version"), 0);
    EXPECT_EQ(out_.find(program + " "), 0u);
  }
}

TEST_F(ProgramsTest, OutputThatIsNotTakenIsAnError) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full";
  EXPECT_EQ(run("trireme-preprocess --help >/dev/full"), 74);
}

}  // namespace
}  // namespace trireme::tokenizer
