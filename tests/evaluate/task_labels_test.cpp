#include <gtest/gtest.h>

#include "evaluate/tasks.hpp"

namespace trireme::evaluate {
namespace {

std::vector<std::string> labels(const std::vector<std::pair<const char*, const char*>>& tasks) {
  std::vector<TaskSpec> specs;
  for (const auto& [name, file] : tasks) specs.push_back({.name = name, .file = file});
  return task_labels(specs);
}

using Labels = std::vector<std::string>;

TEST(TaskLabels, HaveTheFileWhereTheNameIsNotEnough) {
  EXPECT_EQ(labels({{"lambada", "a/x.jsonl"}, {"piqa", "b/x.jsonl"}}), (Labels{"lambada", "piqa"}));
  EXPECT_EQ(labels({{"blimp", "a/x.jsonl"}, {"piqa", "x.jsonl"}, {"blimp", "b/y.v2.jsonl"}}),
            (Labels{"blimp/x", "piqa", "blimp/y.v2"}));
}

TEST(TaskLabels, HaveAsMuchOfThePathAsTellsThemApart) {
  EXPECT_EQ(labels({{"arc", "a/x.jsonl"}, {"arc", "b/x.jsonl"}, {"arc", "c/y.jsonl"}}),
            (Labels{"arc/a/x", "arc/b/x", "arc/y"}));
  EXPECT_EQ(labels({{"arc", "/t/./a/x.jsonl"}, {"arc", "/s/a/x.jsonl"}, {"arc", "/s/b/x.jsonl"}}),
            (Labels{"arc/t/a/x", "arc/s/a/x", "arc/b/x"}));
  EXPECT_EQ(labels({{"arc", "x.jsonl"}, {"arc", "../x.jsonl"}}), (Labels{"arc/x", "arc/../x"}));
  EXPECT_EQ(labels({{"arc", "a/x.jsonl"}, {"arc", "a/x.json"}, {"arc", "b/x.json"}}),
            (Labels{"arc/x.jsonl", "arc/a/x.json", "arc/b/x"}));
  EXPECT_EQ(labels({{"arc", "a/x.jsonl"}, {"arc", "./a/x.jsonl"}}), (Labels{"arc/x#1", "arc/x#2"}));
}

}  // namespace
}  // namespace trireme::evaluate
