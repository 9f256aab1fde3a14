#include "data/prepare/split_lines.hpp"

#include <map>
#include <sstream>

#include "dataset_files.hpp"

namespace trireme::data {
namespace {

class SplitLinesTest : public ScratchTest {
 protected:
  void SetUp() override {
    ScratchTest::SetUp();
    std::string first, second;
    for (int i = 0; i < 60; ++i) first += line(i) + "\n";
    for (int i = 60; i < 100; ++i) second += line(i) + (i < 99 ? "\r\n" : "");
    write_file_atomically(folder_ / "a.jsonl", first);
    write_file_atomically(folder_ / "b.jsonl", second);
    options_ = {.inputs = {path("a.jsonl"), path("b.jsonl")},
                .folder = folder_ / "out",
                .fractions = {0.8, 0.15, 0.05}};
  }
  static std::string line(int i) { return fmt::format("{{\"text\": \"line {}\"}}", i); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::vector<std::string> lines_of(const std::string& name) {
    std::istringstream text(read_file(folder_ / "out" / name));
    std::vector<std::string> lines;
    for (std::string each; std::getline(text, each);) lines.push_back(each);
    return lines;
  }
  LineSplitOptions options_;
};

TEST_F(SplitLinesTest, EveryLineGoesToOneFileAndSaysWhereItWas) {
  EXPECT_EQ(split_lines(options_), (LineCounts{80, 15, 5}));
  std::map<std::string, int> seen;
  for (const auto& [part, count] : {std::pair{"train", 80u}, {"valid", 15u}, {"test", 5u}}) {
    const auto lines = lines_of(std::string(part) + ".jsonl");
    const auto places = lines_of(std::string(part) + ".lines");
    ASSERT_EQ(lines.size(), count);
    ASSERT_EQ(places.size(), count);
    for (std::size_t i = 0; i < count; ++i) {
      ++seen[lines[i]];
      const std::size_t colon = places[i].rfind(':');
      const int number = std::stoi(places[i].substr(colon + 1)) - 1;
      const bool first = places[i].substr(0, colon) == path("a.jsonl");
      EXPECT_EQ(lines[i], line(first ? number : 60 + number));
    }
  }
  EXPECT_EQ(seen.size(), 100u);
}

TEST_F(SplitLinesTest, TheSeedDecides) {
  split_lines(options_);
  const auto test = lines_of("test.jsonl");
  // Where numpy.random.RandomState(1234).shuffle(a) leaves 2 in a = [0] * 80 + [1] * 15 + [2] * 5.
  EXPECT_EQ(test, (std::vector<std::string>{line(4), line(16), line(76), line(79), line(81)}));
  split_lines(options_);
  EXPECT_EQ(lines_of("test.jsonl"), test);
  options_.seed = 5;
  split_lines(options_);
  EXPECT_NE(lines_of("test.jsonl"), test);
}

TEST_F(SplitLinesTest, CountsCarryWhatIsLeftOver) {
  EXPECT_EQ(count_split(10, {1, 1, 1}), (LineCounts{3, 3, 4}));
  EXPECT_EQ(count_split(7, {0.95, 0.05}), (LineCounts{6, 1, 0}));
  EXPECT_EQ(count_split(7, {5}), (LineCounts{7, 0, 0}));
  EXPECT_EQ(count_split(100, {0.7, 0.2, 0.1}), (LineCounts{70, 20, 10}));
  for (std::int64_t lines = 0; lines < 300; ++lines) {
    const LineCounts counts = count_split(lines, {0.1, 0.7, 0.2});
    EXPECT_EQ(counts[0] + counts[1] + counts[2], lines);
    EXPECT_NEAR(static_cast<double>(counts[1]), 0.7 * static_cast<double>(lines), 1.0 + 1e-9);
  }
}

TEST_F(SplitLinesTest, APartOfNothingIsNotWritten) {
  options_.fractions = {9, 1};
  EXPECT_EQ(split_lines(options_), (LineCounts{90, 10, 0}));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "out/valid.jsonl"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/test.jsonl"));
}

TEST_F(SplitLinesTest, OutputsThatAreThereForAnotherReasonAreKept) {
  split_lines(options_);
  const std::string train = read_file(folder_ / "out/train.jsonl");
  options_.fractions = {9, 1};
  expect_error(ExitCode::usage, "out/test.jsonl' is of another split, this one has no such part",
               [&] { split_lines(options_); });
  options_.inputs = {path("out/train.jsonl")};
  options_.folder = folder_ / "out" / ".";
  expect_error(ExitCode::usage, "out/./train.jsonl' is one of the inputs; name another folder",
               [&] { split_lines(options_); });
  EXPECT_EQ(read_file(folder_ / "out/train.jsonl"), train);
}

TEST_F(SplitLinesTest, BadInputIsNamedAndNothingIsWritten) {
  const auto refuse = [&](ExitCode code, const std::string& text, const LineSplitOptions& options) {
    expect_error(code, text, [&] { split_lines(options); });
    EXPECT_FALSE(std::filesystem::exists(folder_ / "out/train.jsonl"));
  };
  LineSplitOptions bad = options_;
  bad.inputs.push_back("-");
  refuse(ExitCode::usage, "the input is read twice, which standard input ('-') cannot be", bad);
  bad = options_;
  bad.seed = -1;
  refuse(ExitCode::usage, "--seed -1 is not between 0 and 4294967295", bad);
  for (const auto& fractions :
       std::vector<std::vector<double>>{{}, {0, 0}, {1, -1}, {1, 1, 1, 1}}) {
    bad = options_;
    bad.fractions = fractions;
    refuse(ExitCode::usage, "expected those of train, valid and test, such as 0.95,0.04,0.01", bad);
  }
  bad = options_;
  bad.fractions = {0.999, 0.0005, 0.0005};
  refuse(ExitCode::data, "100 lines are too few for 3 parts: valid gets none", bad);
  for (const char* wrong : {"[1]", "\"text\"", "", "{\"text\": 1", "plain"}) {
    write_file_atomically(folder_ / "b.jsonl", line(1) + "\n" + wrong + "\n");
    refuse(ExitCode::data, path("b.jsonl") + ":2: not a JSON object on a line", options_);
  }
}

}  // namespace
}  // namespace trireme::data
