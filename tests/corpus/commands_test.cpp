// clean, urls, dedup, decontaminate and shuffle on files, and as they are called.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "../message_of.hpp"
#include "../scratch_folder.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "corpus/corpus.hpp"

namespace trireme::corpus {
namespace {

using nlohmann::json;
using Json = std::vector<json>;

class CorpusTest : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return (scratch_.path() / name).string(); }
  std::string write(const std::string& name, std::string_view content) const {
    write_file_atomically(path(name), content);
    return path(name);
  }
  std::string write(const std::string& name, const Json& lines) const {
    std::string content;
    for (const json& line : lines) content += line.dump() + "\n";
    return write(name, content);
  }
  Json read(const std::string& name) const {
    Json lines;
    std::istringstream content(read_file(path(name)));
    for (std::string line; std::getline(content, line);) lines.push_back(json::parse(line));
    return lines;
  }
  StreamOptions stream(const std::string& input, int workers = 1) const {
    return {.source = {.inputs = {input}},
            .output = path("out.jsonl"),
            .dropped = path("dropped.jsonl"),
            .report = path("report.json"),
            .workers = workers};
  }
  const ScratchFolder scratch_;
};

/// Words of a made-up language: `length` of them.
std::string prose(std::mt19937& random, int length) {
  std::string text;
  for (int i = 0; i < length; ++i) {
    for (std::size_t n = 2 + random() % 8; n > 0; --n)
      text += static_cast<char>('a' + random() % 26);
    text += i % 9 == 8 ? ". " : " ";
  }
  return text;
}

/// `text` with about `changes` of its words replaced.
std::string changed(std::mt19937& random, const std::string& text, int changes) {
  std::vector<std::string> words;
  std::istringstream in(text);
  for (std::string word; in >> word;) words.push_back(word);
  for (int i = 0; i < changes; ++i) words[random() % words.size()] = prose(random, 1);
  std::string result;
  for (const std::string& word : words) result += word + " ";
  return result;
}

TEST_F(CorpusTest, CleanDropsForTheFirstRuleThatFails) {
  const std::string english =
      "The committee meets on Tuesday, and everybody should bring the papers that were sent out. ";
  std::string lengthy;
  for (int i = 0; i < 12; ++i) lengthy += english;
  const std::string german =
      "Der Ausschuss tagt am Dienstag, und alle sollten die Unterlagen mitbringen. ";
  const std::string input = write(
      "in.jsonl",
      Json{{{"text", lengthy}, {"url", "http://example.com/1"}, {"id", 7}},
           {{"text", lengthy}, {"url", "http://youtu.be/1"}},
           {{"text", lengthy + " Itâ€™s"}, {"url", "http://example.com/2"}},
           {{"text", german + german + german}, {"url", "http://example.com/3"}},
           {{"text", lengthy}, {"url", "http://example.com/1"}},
           {{"text", english}},
           {{"text", "Please enable JavaScript in your browser to read the whole of this page."}},
           {{"text", lengthy}, {"url", "http://example.com/3"}}});
  if (!has_language_detection()) GTEST_SKIP() << "this build is without CLD2";
  const UrlFilter urls;
  CleanOptions options{.stream = stream(input), .urls = &urls};
  const Report report = clean(options);
  const Json kept = read("out.jsonl");
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept[0]["id"], 7) << "other keys stay";
  EXPECT_TRUE(kept[1]["text"].get<std::string>().ends_with("It's"));
  std::map<std::string, std::uint64_t> dropped;
  for (const auto& [reason, count] : report.dropped) dropped[reason] = count.documents;
  EXPECT_EQ(dropped,
            (std::map<std::string, std::uint64_t>{{"url: domain", 1},
                                                  {"url: duplicate", 2},
                                                  {"language is not en", 1},
                                                  {"fewer than 128 tokens", 1},
                                                  {"javascript in fewer than 256 characters", 1}}));
  EXPECT_EQ(report.changed.at("text repaired").documents, 1u);
  const Json reasons = read("dropped.jsonl");
  ASSERT_EQ(reasons.size(), 6u);
  EXPECT_EQ(reasons[0]["reason"], "url: domain");
  EXPECT_EQ(reasons[0]["place"], input + ":2");
  const json written = json::parse(read_file(path("report.json")));
  EXPECT_EQ(written["read"]["documents"], 8);
  EXPECT_EQ(written["dropped"]["url: duplicate"]["documents"], 2);
  EXPECT_EQ(written["kept"]["documents"], 2);
}

// Numbers beyond 64 bits and in other forms, escapes, blanks, what only Python reads, deep nesting.
TEST_F(CorpusTest, OtherKeysKeepTheirBytes) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  const std::string head =
      R"({ "id":123456789012345678901234567890, "x" : [1.0, 1e3, -0, 1E400, NaN, {"text": "no"}], )"
      R"("s":"\u00e9\/\ud800\"}", "deep":)" +
      deep + R"(, "text" : )";
  const std::string plain = head + R"("it\u0027s a text, \u007b" , "last": 0.10} )";
  const std::string curly = head + R"("it\u2019s" ,"url":"http:\/\/example.com/1", "last": 0.10})";
  const std::string input = write("in.jsonl", plain + "\r\n" + curly + "\n" + plain + "\n");
  const UrlFilter urls;
  CleanOptions options{.stream = stream(input), .urls = &urls, .language = "any", .min_tokens = 0};
  EXPECT_EQ(clean(options).changed.at("text repaired").documents, 1u);
  const std::string repaired =
      head + R"("it's" ,"url":"http:\/\/example.com/1", "last": 0.10})" + "\n";
  EXPECT_EQ(read_file(path("out.jsonl")), plain + "\n" + repaired + plain + "\n");

  dedup({.stream = stream(input)});
  EXPECT_EQ(read_file(path("out.jsonl")), plain + "\n" + curly + "\n");
  const std::string open = plain.substr(0, plain.size() - 2);
  EXPECT_EQ(read_file(path("dropped.jsonl")),
            open + R"(,"reason":"exact duplicate","duplicate_of":1} )" + "\n");

  options.min_tokens = 100;
  clean(options);
  EXPECT_EQ(read_file(path("out.jsonl")), "");
  EXPECT_TRUE(read_file(path("dropped.jsonl"))
                  .starts_with(open + R"(,"reason":"fewer than 100 tokens","place":")" + input +
                               ":1\"} \n"));
}

TEST(JsonLineTest, TheLastValueOfAKeyIsReplaced) {
  EXPECT_EQ(with_field(R"({"a":1,"a": {"a":3} })", "a", "x"), R"({"a":1,"a": "x" })");
  EXPECT_EQ(with_field(R"({"b":["a",{"a":1}],"\u0061":2.0})", "a", 7),
            R"({"b":["a",{"a":1}],"\u0061":7})");
  EXPECT_EQ(with_field(R"({"b":"\"a\":1"})", "a", 7), R"({"b":"\"a\":1","a":7})");
  const Document document{.place = "", .line = R"({"u":"1","u":"\u00e9","n":5})", .text = ""};
  EXPECT_EQ(document.field("u"), "\u00e9");
  EXPECT_EQ(document.field("n"), "") << "a number";
  EXPECT_EQ(document.field("m"), "");
}

TEST_F(CorpusTest, CleanRefusesBytesLiterals) {
  const std::string input = write("in.txt", "fine\nb'caf\\xc3\\xa9'\n");
  CleanOptions options{.stream = stream(input), .language = "any", .min_tokens = 0};
  EXPECT_EQ(message_of<DataError>([&] { clean(options); }),
            input +
                ":2: the text is a Python literal of bytes (b'...'): the script that wrote it "
                "printed bytes; decode it there, or give --decode-bytes-literals");
  options.decode_bytes = true;
  clean(options);
  EXPECT_EQ(read("out.jsonl")[1]["text"], "caf\u00e9");
  options.stream.skip_bad = true;
  options.decode_bytes = false;
  EXPECT_EQ(clean(options).dropped.at("unreadable").documents, 1u);
}

TEST_F(CorpusTest, UrlListsAreFiltered) {
  const std::string input = write(
      "urls.txt", "http://example.com/a\n http://example.com/a \nhttp://imgur.com/a\nhttp://x\n");
  StreamOptions options = stream(input);
  const Report report = filter_urls(options, UrlFilter());
  EXPECT_EQ(read_file(path("out.jsonl")), "http://example.com/a\n");
  EXPECT_EQ(report.dropped.at("url: duplicate").documents, 1u);
  EXPECT_EQ(report.dropped.at("url: domain").documents, 1u);
  EXPECT_EQ(report.dropped.at("url: short").documents, 1u);
}

TEST_F(CorpusTest, DedupFindsPlantedCopiesAndNoOthers) {
  std::mt19937 random(11);
  Json documents;
  std::set<int> exact, near;
  for (int i = 0; i < 300; ++i) {
    const std::string text = prose(random, 300);
    documents.push_back({{"id", documents.size()}, {"text", text}});
    if (i % 10 == 0) {
      exact.insert(static_cast<int>(documents.size()));
      documents.push_back({{"id", documents.size()}, {"text", text}});
    } else if (i % 5 == 0) {  // similarity 0.93 and more
      near.insert(static_cast<int>(documents.size()));
      documents.push_back({{"id", documents.size()}, {"text", changed(random, text, 5)}});
    } else if (i % 7 == 0) {  // similarity 0.5: related, and no copy
      documents.push_back({{"id", documents.size()}, {"text", changed(random, text, 80)}});
    }
  }
  documents.push_back({{"id", documents.size()}, {"text", "tiny"}});
  documents.push_back({{"id", documents.size()}, {"text", "wee"}});
  const std::string input = write("in.jsonl", documents);
  DedupOptions options{.stream = stream(input)};
  const Report report = dedup(options);
  std::set<int> found_exact, found_near;
  for (const json& line : read("dropped.jsonl")) {
    const int id = line["id"];
    EXPECT_EQ(line["duplicate_of"], id) << "the document before it, counted from 1";
    (line["reason"] == "exact duplicate" ? found_exact : found_near).insert(id);
  }
  EXPECT_EQ(found_exact, exact);
  EXPECT_EQ(found_near, near) << "recall and precision";
  EXPECT_EQ(report.kept.documents, documents.size() - exact.size() - near.size());
  options.near = false;
  EXPECT_EQ(dedup(options).kept.documents, documents.size() - exact.size());
}

TEST_F(CorpusTest, AnyNumberOfWorkersWritesTheSameBytes) {
  std::mt19937 random(3);
  Json documents;
  for (int i = 0; i < 900; ++i) {
    const std::string text = prose(random, 400);
    documents.push_back({{"text", text}, {"url", fmt::format("http://example.com/{}", i % 800)}});
    if (i % 4 == 0) documents.push_back({{"text", changed(random, text, 1 + i % 60)}});
  }
  const std::string input = write("in.jsonl", documents);  // several batches of a megabyte
  ASSERT_GT(std::filesystem::file_size(input), 2'500'000u);
  const std::string evaluation =
      write("test.txt", documents[5]["text"].get<std::string>().substr(500, 300) + "\n");
  const UrlFilter urls;
  std::vector<std::string> first;
  for (const int workers : {1, 2, 5}) {
    std::vector<std::string> now;
    const auto keep = [&] {
      for (const char* name : {"out.jsonl", "dropped.jsonl", "report.json"})
        now.push_back(read_file(path(name)));
    };
    clean({.stream = stream(input, workers), .urls = &urls, .language = "any"});
    keep();
    dedup({.stream = stream(input, workers), .rounds = -1});
    keep();
    const Report report =
        decontaminate({.stream = stream(input, workers), .evaluation = {.inputs = {evaluation}}});
    EXPECT_EQ(
        report.changed.count("contaminated: split") + report.changed.count("contaminated: trimmed"),
        1u);
    keep();
    if (first.empty()) first = now;
    EXPECT_TRUE(now == first) << workers << " workers";
  }
}

TEST_F(CorpusTest, DecontaminateNamesTheParts) {
  std::mt19937 random(8);
  const std::string secret = prose(random, 20);
  const std::string text = prose(random, 200) + secret + prose(random, 200);
  const std::string input = write("in.jsonl", Json{{{"text", text}, {"id", 1}},
                                                   {{"text", secret}, {"id", 2}},
                                                   {{"text", "clean"}, {"id", 3}}});
  const std::string evaluation = write("lambada.jsonl", Json{{{"text", secret}}});
  const Report report =
      decontaminate({.stream = stream(input), .evaluation = {.inputs = {evaluation}}});
  const Json lines = read("out.jsonl");
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0]["split_id"], input + ":1#1");
  EXPECT_EQ(lines[1]["split_id"], input + ":1#2");
  EXPECT_TRUE(text.starts_with(lines[0]["text"].get<std::string>()));
  EXPECT_TRUE(text.ends_with(lines[1]["text"].get<std::string>()));
  EXPECT_EQ(lines[2]["id"], 3);
  EXPECT_FALSE(lines[2].contains("split_id"));
  EXPECT_EQ(report.dropped.at("contaminated: nothing is left").documents, 1u);
  EXPECT_EQ(message_of<DataError>([&] {
              decontaminate({.stream = stream(input),
                             .evaluation = {.inputs = {write("few.txt", "few words\n")}}});
            }),
            path("few.txt") + ": the evaluation texts have no text of 8 words or more");
}

TEST_F(CorpusTest, ShuffleMergesInASeededOrder) {
  std::string a, b;
  std::multiset<std::string> expected;
  for (int i = 0; i < 1000; ++i) {
    const std::string line = fmt::format("{{\"text\":\"{}\"}}", i);
    (i < 600 ? a : b) += line + "\n";
    expected.insert(line);
  }
  b.pop_back();  // the last line lacks its newline
  ShuffleOptions options{.source = {.inputs = {write("a.jsonl", a), write("b.jsonl", b)}},
                         .output = path("out.jsonl")};
  const auto run = [&](std::uint64_t seed) {
    options.seed = seed;
    EXPECT_EQ(shuffle(options), 1000u);
    return read_file(options.output);
  };
  const std::string one = run(1);
  EXPECT_EQ(run(1), one);
  EXPECT_NE(run(2), one);
  std::multiset<std::string> lines;
  double displacement = 0;
  std::istringstream content(one);
  int place = 0;
  for (std::string line; std::getline(content, line); ++place) {
    lines.insert(line);
    displacement += std::abs(std::stoi(json::parse(line)["text"].get<std::string>()) - place);
  }
  EXPECT_EQ(lines, expected);
  EXPECT_NEAR(displacement / 1000, 1000 / 3.0, 40) << "the mean of a uniform order";
  write("b.jsonl", "{\"text\":\"x\"}\nnonsense\n");
  EXPECT_EQ(message_of<DataError>([&] { shuffle(options); }),
            path("b.jsonl") + ":2: not a JSON object");
}

TEST_F(CorpusTest, BadInputGivesOneMessageWithItsLine) {
  const std::string binary = TRIREME_BINARY_DIR "/bin/trireme-preprocess ";
  write("ok.jsonl", "{\"text\": \"a b c\"}\n");
  write("latin1.txt", "fine\ncaf\xe9\n");
  write("empty.jsonl", "{\"text\": \"a\"}\n\n");
  write("literal.txt", "b'x'\n");
  write("words.txt", "imgur\ntwo words\n");
  const std::tuple<const char*, int, const char*> cases[] = {
      {"clean --input latin1.txt --output o --language any", 65,
       "latin1.txt:2: not UTF-8 at byte 4 (0xe9)"},
      {"dedup --input empty.jsonl --output o", 65, "empty.jsonl:2: not JSON"},
      {"clean --input literal.txt --output o --language any", 65, "literal.txt:1: the text is"},
      {"dedup --input absent --output o", 74, "cannot open 'absent': No such file or directory"},
      {"dedup --input ok.jsonl --output no.jsonl/x", 74,
       "cannot create folder 'no.jsonl': Not a directory"},
      {"clean --input ok.jsonl --output o --block-domains words.txt", 65,
       "words.txt:2: expected one word a line, not 'two words'"},
      {"clean --input ok.jsonl --output o --workers 0", 2, "--workers 0: must be at least 1"},
      {"clean --input ok.jsonl --output o --vocab v", 2, "--vocab is for --tokenizer"},
      {"clean --input ok.jsonl --output o --min-tokens -1", 2, "--min-tokens -1: expected 0 or"},
      {"dedup --input ok.jsonl --output o --bands 7", 2, "--hashes 100 must be a multiple of"},
      {"dedup --input ok.jsonl --output o --duplicate 80", 2, "similarities are between 0 and 1"},
      {"decontaminate --input - --output o --evaluation ok.jsonl --min-ngram 1", 2,
       "--max-count above 0 reads the input more than once: standard input is not a regular file"},
      {"decontaminate --input fifo --output o --evaluation ok.jsonl --min-ngram 1", 2,
       "--max-count above 0 reads the input more than once: 'fifo' is not a regular file"},
      {"cleen --input ok.jsonl", 2, "unknown command 'cleen'"}};
  write("no.jsonl", "");
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  for (const auto& [command, code, message] : cases) {
    const int status = std::system(
        fmt::format("cd '{}' && {} {} >out 2>err </dev/null", path(""), binary, command).c_str());
    EXPECT_EQ(WEXITSTATUS(status), code) << command << read_file(path("err"));
    EXPECT_EQ(read_file(path("err")).find(fmt::format("trireme-preprocess: {}", message)), 0u)
        << command << ": " << read_file(path("err"));
    EXPECT_FALSE(std::filesystem::exists(path("o"))) << command;
  }
}

}  // namespace
}  // namespace trireme::corpus
