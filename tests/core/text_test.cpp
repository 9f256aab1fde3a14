#include <gtest/gtest.h>

#include <string>

#include "core/text.hpp"

namespace trireme {
namespace {

TEST(Nearest, EditDistance) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("layers", "Layers"), 0);
  EXPECT_EQ(edit_distance("layres", "layers"), 1);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("weight_decy", "weight_decay"), 1);
}

TEST(Nearest, NearestWord) {
  EXPECT_EQ(nearest("hiden", {"layers", "hidden", "heads"}), "hidden");
  EXPECT_EQ(nearest("matrix", {"embedding", "matrices"}), "matrices");
  EXPECT_EQ(nearest("mat", {"embedding", "matrices"}), "");
  EXPECT_EQ(nearest("lr", {"type", "peak"}), "");
  EXPECT_EQ(nearest("", {"type", "peak"}), "");
  EXPECT_EQ(nearest(std::string(100'000, 'x'), {"type"}), "");
}

TEST(Nearest, SaysWhatWasMeant) {
  EXPECT_EQ(did_you_mean("sumary", {"follow", "summary"}), "; did you mean 'summary'?");
  EXPECT_EQ(did_you_mean("xyz", {"follow", "summary"}), "");
}

TEST(Plural, HasOneSingular) {
  EXPECT_EQ(counted(0, "rank"), "0 ranks");
  EXPECT_EQ(counted(1, "rank"), "1 rank");
  EXPECT_EQ(counted(-1, "rank"), "-1 ranks");
  EXPECT_EQ(counted(std::size_t{2}, "micro-batch"), "2 micro-batches");
  EXPECT_EQ(counted(1, "micro-batch"), "1 micro-batch");
}

const TableRows kRows = {
    {"run", "state", "loss"}, {"a|b", "finished", "12.5"}, {"c, \"d\"", "", ""}};

TEST(TextTable, AlignsTextsToTheLeftAndNumbersToTheRight) {
  EXPECT_EQ(aligned_table(kRows, 2),
            "run     state     loss\n"
            "a|b     finished  12.5\n"
            "c, \"d\"  -            -\n");
  EXPECT_EQ(aligned_table({{"name"}, {"a"}}, 1), "name\na\n") << "blanks at the end of a line";
}

TEST(TextTable, MarkdownKeepsBarsOutOfCells) {
  EXPECT_EQ(markdown_table(kRows, 2),
            "| run    | state    | loss |\n"
            "| ------ | -------- | ---: |\n"
            "| a\\|b   | finished | 12.5 |\n"
            "| c, \"d\" | -        |    - |\n");
  EXPECT_EQ(markdown_table({{"x"}, {"1"}}, 0), "|   x |\n| --: |\n|   1 |\n");
}

TEST(TextTable, CsvQuotesWhereItHasTo) {
  EXPECT_EQ(csv_table(kRows), "run,state,loss\na|b,finished,12.5\n\"c, \"\"d\"\"\",,\n");
  EXPECT_EQ(csv_table({{"a"}, {"two\nlines"}}), "a\n\"two\nlines\"\n");
}

}  // namespace

}  // namespace trireme
