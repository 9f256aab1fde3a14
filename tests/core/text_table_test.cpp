#include "core/text_table.hpp"

#include <gtest/gtest.h>

namespace trireme {
namespace {

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
