#include "data/indexed_dataset.hpp"

#include <vector>

#include "dataset_files.hpp"

namespace trireme::data {
namespace {

std::vector<SequenceRange> ranges(const std::string& text, std::int64_t sequences) {
  const SplitWeights weights = normalize_weights(parse_split_weights(text));
  return {split_range(weights, Split::train, sequences),
          split_range(weights, Split::valid, sequences),
          split_range(weights, Split::test, sequences)};
}

TEST(Split, BoundariesAreMegatrons) {
  using Ranges = std::vector<SequenceRange>;
  EXPECT_EQ(ranges("969,30,1", 1000), (Ranges{{0, 969}, {969, 999}, {999, 1000}}));
  EXPECT_EQ(ranges("8, 2", 23), (Ranges{{0, 18}, {18, 23}, {23, 23}}));
  EXPECT_EQ(ranges("1/1/2", 10), (Ranges{{0, 2}, {2, 5}, {5, 10}}));      // 2.5 rounds to even
  EXPECT_EQ(ranges("3/1/0", 14), (Ranges{{0, 10}, {10, 14}, {14, 14}}));  // 10.5 rounds to even
  EXPECT_EQ(ranges("1", 7), (Ranges{{0, 7}, {7, 7}, {7, 7}}));
  EXPECT_EQ(ranges(".8,0.15,.05", 0), (Ranges{{0, 0}, {0, 0}, {0, 0}}));
  // 0.8 + 0.15 = 0.9500000000000001 in doubles: half of 10 documents plus a rounding error.
  EXPECT_EQ(ranges("0.8,0.15,0.05", 10), (Ranges{{0, 8}, {8, 10}, {10, 10}}));
}

TEST(Split, BadWeightsAreNamed) {
  const auto refused = [](const char* text, const char* message) {
    expect_error(ExitCode::deck, message, [&] { normalize_weights(parse_split_weights(text)); });
  };
  refused("969,x,1", "data.split = '969,x,1': 'x' is not a weight; write e.g. 969,30,1");
  refused("1e3,1", "'1e3' is not a weight");
  refused("1.2.3", "'1.2.3' is not a weight");
  refused("-1,2", "data.split = -1,2: -1 is not a weight");
  refused("inf", "inf is not a weight");
  refused("0,0,0", "data.split = 0,0,0 gives no part any weight");
  refused("", "gives no part any weight");
  refused("1,2,3,4", "data.split = 1,2,3,4 has more than three weights (train, valid, test)");
  expect_error(ExitCode::usage, "'dev' is not a part of a dataset", [] { parse_split("dev"); });
  EXPECT_EQ(parse_split("test"), Split::test);
}

TEST(Split, SamplesThatARunTakes) {
  const RunLength run{.train_samples = 107 * 8, .evaluations = 4, .evaluation_samples = 3 * 8};
  EXPECT_EQ(samples_wanted(Split::train, run), 856);
  EXPECT_EQ(samples_wanted(Split::valid, run), 5 * 3 * 8);
  EXPECT_EQ(samples_wanted(Split::test, run), 3 * 8);
  RunLength only_at_end = run;
  only_at_end.evaluations = 0;
  EXPECT_EQ(samples_wanted(Split::valid, only_at_end), 3 * 8);
}

}  // namespace
}  // namespace trireme::data
