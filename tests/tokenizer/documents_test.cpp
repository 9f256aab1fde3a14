#include "tokenizer/preprocess/preprocess.hpp"

#include <gtest/gtest.h>
#include <zlib.h>

#include <random>

#include "fixture.hpp"
#include "packed.hpp"

namespace trireme::tokenizer {
namespace {

/// Writes a gzip member; `append` puts it after the file's content.
void write_gzip(const std::filesystem::path& path, const std::string& content,
                bool append = false) {
  gzFile file = gzopen(path.c_str(), append ? "ab" : "wb");
  ASSERT_TRUE(file);
  ASSERT_EQ(gzwrite(file, content.data(), static_cast<unsigned>(content.size())),
            static_cast<int>(content.size()));
  ASSERT_EQ(gzclose(file), Z_OK);
}

std::vector<std::string> read_all(const DocumentSource& source) {
  DocumentReader reader(source);
  DocumentBatch batch;
  std::vector<std::string> texts;
  while (reader.read(batch))
    for (const auto& record : batch.records)
      texts.push_back(document_text(batch, record, source.key));
  return texts;
}

using Texts = std::vector<std::string>;

class DocumentsTest : public FolderTest {
 protected:
  /// What is said of a JSON line that stands second in its file.
  std::string json_error(const std::string& line) {
    const std::string file = write("bad.jsonl", "{\"text\": \"good\"}\n" + line + "\n");
    const std::string message = message_of<DataError>([&] { read_all({{file}}); });
    EXPECT_EQ(message.find(file + ":2: "), 0u) << message;
    return message.substr(std::min(message.size(), file.size() + 4));
  }
};

TEST_F(DocumentsTest, ReadsJsonLines) {
  const std::string file = write(
      "a.jsonl",
      "{\"text\": \"one\", \"n\": [1, {\"text\": \"inner\"}], \"body\": \"b1\"}\n"
      " {\"body\": \"b\\u00e9\\n\\u0000\", \"meta\": {\"text\": 3}, \"text\": \"\"} \r\n"
      "{\"text\": 1, \"body\": null, \"text\": \"last \\ud83d\\ude00 counts\", \"body\": \"x\"}");
  EXPECT_EQ(read_all({{file}}), (Texts{"one", "", "last 😀 counts"}));
  EXPECT_EQ(read_all({{file}, DocumentFormat::by_name, "body"}),
            (Texts{"b1", std::string("bé\n\0", 5), "x"}));
}

TEST_F(DocumentsTest, BadJsonLinesAreNamedWithTheReason) {
  EXPECT_EQ(json_error("{\"text\": \"a\"").find("not JSON at byte 13: syntax error"), 0u)
      << json_error("{\"text\": \"a\"");
  // What the reason is called depends on the library's release.
  EXPECT_EQ(json_error("").find("not JSON at byte 1: "), 0u) << json_error("");
  EXPECT_EQ(json_error("").find("json.exception"), std::string::npos) << json_error("");
  EXPECT_EQ(json_error("{\"text\": \"a\"} x").find("not JSON at byte 15: syntax error"), 0u);
  EXPECT_EQ(json_error("{\"text\": \"\\ud800\"}"),
            "'text' has half of a surrogate pair (\\ud800 to \\udfff): no character");
  EXPECT_EQ(json_error("[\"text\"]"), "not a JSON object");
  EXPECT_EQ(json_error("\"text\""), "not a JSON object");
  EXPECT_EQ(json_error("null"), "not a JSON object");
  EXPECT_EQ(json_error("[{\"text\": \"a\"}]"), "not a JSON object");
  EXPECT_EQ(json_error("{\"body\": \"a\"}"), "there is no key 'text'");
  EXPECT_EQ(json_error("{\"a\": {\"text\": \"a\"}}"), "there is no key 'text'");
  EXPECT_EQ(json_error("{\"text\": 3}"), "'text' is a number, not a string");
  EXPECT_EQ(json_error("{\"text\": null}"), "'text' is null, not a string");
  EXPECT_EQ(json_error("{\"text\": [\"a\"]}"), "'text' is an array, not a string");
  EXPECT_EQ(json_error("{\"text\": {\"text\": \"a\"}}"), "'text' is an object, not a string");
  EXPECT_EQ(json_error("{\"text\": \"a\", \"text\": true}"), "'text' is a boolean, not a string");
  EXPECT_EQ(json_error("{\"text\": \"caf\xE9\"}"), "not UTF-8 at byte 14 (0xe9)");
}

TEST_F(DocumentsTest, ReadsPlainText) {
  const std::string file =
      write("a.txt", "\xEF\xBB\xBFone\r\n\n  \t\n two \nthree\xF0\x9F\x98\x80");
  EXPECT_EQ(read_all({{file}}), (Texts{"one", " two ", "three😀"}));
  EXPECT_EQ(read_all({{file, file}, DocumentFormat::text_files}),
            (Texts{"one\r\n\n  \t\n two \nthree😀", "one\r\n\n  \t\n two \nthree😀"}));
  const std::string bad = write("b.txt", "good\n\nbad \xC3\n");
  EXPECT_EQ(message_of<DataError>([&] { read_all({{bad}}); }),
            bad + ":3: not UTF-8 at byte 5 (0xc3)");
  EXPECT_EQ(message_of<DataError>([&] {
              read_all({{bad}, DocumentFormat::text_files});
            }),
            bad + ": not UTF-8 at byte 11 (0xc3)");
  EXPECT_EQ(read_all({{write("empty.txt", "")}}), Texts{});
  EXPECT_EQ(read_all({{write("empty.txt", "")}, DocumentFormat::text_files}), Texts{});
}

TEST_F(DocumentsTest, LinesAcrossBatchesStayWhole) {
  std::mt19937 random(5);
  std::string content;
  Texts lines;
  for (const std::size_t length : {100u, 3'000'000u, 1u, 1'048'576u, 1'048'575u, 20u})
    lines.emplace_back(length, static_cast<char>('a' + random() % 26));
  while (lines.size() < 30000) lines.emplace_back(1 + random() % 200, 'x');
  for (const std::string& line : lines) content += line + "\n";
  EXPECT_EQ(read_all({{write("a.txt", content)}}), lines);
}

TEST_F(DocumentsTest, ReadsGzipByItsMagic) {
  write_gzip(folder_ / "a.txt", "one\ntwo\n");
  write_gzip(folder_ / "a.txt", "three", /*append=*/true);
  EXPECT_EQ(read_all({{(folder_ / "a.txt").string()}}), (Texts{"one", "two", "three"}));
  write_gzip(folder_ / "b.txt.gz", "four\n");
  write_gzip(folder_ / "c.jsonl.gz", "{\"text\": \"five\"}\n");
  EXPECT_EQ(read_all({{(folder_ / "b.txt.gz").string(), (folder_ / "c.jsonl.gz").string()}}),
            (Texts{"four", "five"}));
}

TEST_F(DocumentsTest, BrokenGzipIsAnError) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += std::to_string(i * 7919) + "\n";
  write_gzip(folder_ / "whole", text);
  std::string bytes = read_file(folder_ / "whole");
  const std::string cut = write("cut.txt.gz", bytes.substr(0, bytes.size() / 2));
  EXPECT_EQ(message_of<DataError>([&] { read_all({{cut}}); }),
            cut + ": broken gzip stream: unexpected end of file");
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 0x55);
  const std::string damaged = write("damaged.txt.gz", bytes);
  EXPECT_EQ(message_of<DataError>([&] {
              read_all({{damaged}});
            }).find(damaged + ": broken gzip stream: "),
            0u);
}

TEST_F(DocumentsTest, MembersOfArchivesAreInputs) {
  const std::string archive = (folder_ / "a.tar.xz").string();
  write_tar(archive, ARCHIVE_FILTER_XZ,
            {{"b.txt", "one\n\ntwo"}, {"a.json", "{\"text\": \"three\"}\n"}, {"c.txt", "four"}});
  const std::string text = write("d.txt", "five\n");
  EXPECT_EQ(read_all({{archive, text}}), (Texts{"one", "two", "three", "four", "five"}));
  EXPECT_EQ(read_all({{archive}, DocumentFormat::text_files}),
            (Texts{"one\n\ntwo", "{\"text\": \"three\"}\n", "four"}));
  write_tar(archive, ARCHIVE_FILTER_XZ, {{"b.txt", "one"}, {"a.jsonl", "{\"text\": \"x\"}\n{}\n"}});
  EXPECT_EQ(message_of<DataError>([&] { read_all({{archive}}); }),
            archive + ":a.jsonl:2: there is no key 'text'");
}

TEST_F(DocumentsTest, TheLazyLoadersFilesAreRefused) {
  std::filesystem::create_directories(folder_ / "wiki.lazy");
  write("wiki.lazy/text", "no boundaries");
  for (const char* input : {"wiki.lazy", "wiki.lazy/", "wiki.lazy/text", "text.len.pkl"})
    EXPECT_EQ(message_of<DataError>([&] { DocumentReader({{(folder_ / input).string()}}); }),
              "'" + (folder_ / input).string() +
                  "' belongs to a folder of Megatron-LM v0's lazy loader, which cannot be read: "
                  "give the JSON lines that it was made of");
}

TEST_F(DocumentsTest, InputsAreCheckedBeforeAnyIsRead) {
  EXPECT_THROW(DocumentReader({}), UsageError);
  EXPECT_EQ(message_of<UsageError>([] {
              DocumentReader({{"-", "-"}});
            }),
            "standard input ('-') can be read only once");
  const std::string absent = (folder_ / "absent").string();
  EXPECT_EQ(message_of<IoError>([&] {
              DocumentReader({{write("a.txt", "a"), absent}});
            }),
            "cannot open '" + absent + "': No such file or directory");
  EXPECT_THROW(read_all({{folder_.string()}}), IoError);
}

TEST_F(DocumentsTest, MutatedJsonLinesNeverCrash) {
  std::mt19937 random(11);
  const Texts seeds = {
      R"({"text": "In the beginning \u00e9\ud83d\ude00 \"x\" \\", "n": -1.5e+10, "list": [1, [2], {}]})",
      R"({"id": 17, "text": "déjà vu", "deep": {"a": {"b": [true, false, null]}}})",
      R"({"text": ""})"};
  const std::string tokens[] = {"{",        "}",     "[",       "]",    "\"",
                                "\\",       "\\u",   "\\ud800", ":",    ",",
                                "\"text\"", "1e999", "\xFF",    "null", std::string(1, '\0'),
                                "[[[[[[[["};
  int good = 0, bad = 0;
  for (int i = 0; i < 20000; ++i) {
    DocumentBatch batch{"fuzz", true, seeds[random() % seeds.size()], {}};
    for (unsigned edits = random() % 4; edits > 0; --edits) {
      const std::size_t at = random() % (batch.bytes.size() + 1);
      switch (random() % 4) {
        case 0:
          batch.bytes.insert(at, tokens[random() % std::size(tokens)]);
          break;
        case 1:
          batch.bytes.erase(at, random() % 6);
          break;
        case 2:
          batch.bytes.resize(at);
          break;
        default:
          if (at < batch.bytes.size()) batch.bytes[at] = static_cast<char>(random());
      }
    }
    try {
      document_text(batch, {0, batch.bytes.size(), 1}, "text");
      ++good;
    } catch (const DataError& error) {
      ASSERT_EQ(std::string(error.what()).find("fuzz:1: "), 0u) << error.what();
      ++bad;
    }
  }
  EXPECT_GT(good, 2000);
  EXPECT_GT(bad, 2000);
}

}  // namespace
}  // namespace trireme::tokenizer
