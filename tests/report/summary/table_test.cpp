#include "report/summary/table.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace trireme::report {
namespace {

const std::vector<RunSummary> kRuns = {
    {.name = "runs/a",
     .iterations = 200,
     .last_loss = 3.25,
     .best_loss = 3.125,
     .ms = 412.04,
     .tokens_per_second = 1270000,
     .tflops = 431.5,
     .mfu = 0.431,
     .memory = 61.5 * (1 << 30)},
    {.name = "odd|name,\"b\"", .iterations = 0},
};

TEST(Table, ForPeopleIsAligned) {
  EXPECT_EQ(to_table(kRuns, TableFormat::text),
            "run           iterations      loss  best loss  ms/iteration  tokens/s  TFLOP/s/GPU  "
            "memory GiB  MFU %\n"
            "runs/a               200  3.250000   3.125000         412.0   1270000      431.500  "
            "     61.50   43.1\n"
            "odd|name,\"b\"           0         -          -             -         -            -  "
            "         -      -\n");
}

TEST(Table, InMarkdownKeepsBarsOutOfCells) {
  const std::string text = to_table(kRuns, TableFormat::markdown);
  EXPECT_EQ(text.substr(0, text.find('\n')),
            "| run           | iterations |     loss | best loss | ms/iteration | tokens/s | "
            "TFLOP/s/GPU | memory GiB | MFU % |");
  EXPECT_NE(text.find("\n| ------------- | ---------: | -------: |"), std::string::npos) << text;
  EXPECT_NE(text.find("\n| odd\\|name,\"b\" |          0 |        - |"), std::string::npos) << text;
}

TEST(Table, InCsvHasAllDigitsAndQuotes) {
  EXPECT_EQ(to_table(kRuns, TableFormat::csv),
            "name,iterations,last_loss,best_loss,ms_per_iteration,tokens_per_second,tflops_per_gpu,"
            "memory_bytes,mfu\n"
            "runs/a,200,3.25,3.125,412.04,1270000,431.5,66035122176,0.431\n"
            "\"odd|name,\"\"b\"\"\",0,,,,,,,\n");
}

TEST(Table, InJsonHasNullForWhatIsNotKnown) {
  const auto table = nlohmann::json::parse(to_table(kRuns, TableFormat::json));
  ASSERT_EQ(table.size(), 2u);
  EXPECT_EQ(table[0]["memory_bytes"], 66035122176.0);
  EXPECT_EQ(table[1]["name"], "odd|name,\"b\"");
  EXPECT_TRUE(table[1]["mfu"].is_null());
  EXPECT_TRUE(nlohmann::json::parse(to_table({}, TableFormat::json)).empty());
}

}  // namespace
}  // namespace trireme::report
