#include "report/follow/line_file.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "../../scratch_folder.hpp"
#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme::report {
namespace {

using Lines = std::vector<std::string>;

class LineFileTest : public testing::Test {
 protected:
  void append(const std::string& text) { std::ofstream(path_, std::ios::app) << text; }

  ScratchFolder folder_;
  std::filesystem::path path_ = folder_.path() / "metrics.jsonl";
  LineFile file_{path_};
};

TEST_F(LineFileTest, GivesEachLineOnceWhenItIsComplete) {
  EXPECT_TRUE(file_.read().lines.empty()) << "there is no file yet";
  append("one\ntw");
  EXPECT_EQ(file_.read().lines, Lines{"one"});
  EXPECT_TRUE(file_.read().lines.empty());
  append("o\r\n\nthree\n");
  const LineFile::News news = file_.read();
  EXPECT_EQ(news.lines, (Lines{"two", "", "three"}));
  EXPECT_FALSE(news.anew);
}

TEST_F(LineFileTest, BeginsAnewWhereTheFileIsReplacedOrCut) {
  append("one\ntwo\nthr");
  file_.read();
  write_file_atomically(path_, "one\nother\nthird\nfourth\n");
  LineFile::News news = file_.read();
  EXPECT_TRUE(news.anew);
  EXPECT_EQ(news.lines, (Lines{"one", "other", "third", "fourth"}));

  std::ofstream(path_) << "x\n";  // the same file, shorter
  news = file_.read();
  EXPECT_TRUE(news.anew);
  EXPECT_EQ(news.lines, Lines{"x"});

  std::ofstream(path_) << "y\nand more than there was\n";  // the same file, and longer
  news = file_.read();
  EXPECT_TRUE(news.anew);
  EXPECT_EQ(news.lines, (Lines{"y", "and more than there was"}));
}

TEST_F(LineFileTest, NamesWhatCannotBeRead) {
  LineFile folder(folder_.path());
  EXPECT_THROW(folder.read(), IoError);
}

}  // namespace
}  // namespace trireme::report
