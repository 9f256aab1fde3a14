#include "data/indexed_dataset.hpp"

#include <limits>
#include <nlohmann/json.hpp>

#include "dataset_files.hpp"

namespace trireme::data {
namespace {

const nlohmann::json& goldens() {
  static const auto json = nlohmann::json::parse(read_file(golden("blend_golden.json")));
  return json;
}

// The blend takes `datasets` in this order, and the samples of each in theirs.
void expect_order(const BlendIndex& index, const nlohmann::json& datasets) {
  ASSERT_EQ(index.samples(), std::ssize(datasets));
  EXPECT_EQ(index.dataset.type(), IntegerType::int16);
  EXPECT_EQ(index.sample.type(), IntegerType::int64);
  std::map<std::int64_t, std::int64_t> taken;
  for (std::int64_t i = 0; i < index.samples(); ++i) {
    ASSERT_EQ(index.dataset(i), datasets[i].get<std::int64_t>()) << "sample " << i;
    ASSERT_EQ(index.sample(i), taken[index.dataset(i)]++) << "sample " << i;
  }
}

TEST(BlendIndex, WeightsGiveMegatronsOrder) {
  for (const auto& expected : goldens()["weighted"]) {
    const auto given = expected["given"].get<std::vector<double>>();
    SCOPED_TRACE(fmt::format("{} weights", given.size()));
    const std::vector<double> weights = normalize_blend(given);
    EXPECT_EQ(weights, expected["weights"].get<std::vector<double>>());
    EXPECT_EQ(normalize_blend(weights), expected["normalized"].get<std::vector<double>>());
    const auto samples = expected["samples"].get<std::int64_t>();
    for (std::size_t d = 0; d < weights.size(); ++d) {
      EXPECT_EQ(blend_share(weights[d], samples), expected["shares"][d].get<std::int64_t>());
      EXPECT_EQ(share_to_build(weights[d], samples), expected["built"][d].get<std::int64_t>());
    }
    expect_order(build_blend_index(weights, samples), expected["dataset"]);
  }
}

TEST(BlendIndex, SizesGiveMegatronsOrder) {
  for (const auto& expected : goldens()["exhaustive"]) {
    const auto sizes = expected["sizes"].get<std::vector<std::int64_t>>();
    const auto all = std::numeric_limits<std::int64_t>::max();
    expect_order(build_exhaustive_blend_index(sizes, all), expected["dataset"]);
    // Fewer samples are the first of them.
    auto begin = expected["dataset"];
    begin.erase(begin.begin() + 3, begin.end());
    expect_order(build_exhaustive_blend_index(sizes, 3), begin);
  }
}

TEST(BlendIndex, WeightsAreAboveZeroAndCountable) {
  expect_error(ExitCode::deck, "a blend with the weight 0: weights are above 0", [] {
    normalize_blend(std::vector<double>{1, 0});
  });
  expect_error(ExitCode::deck, "a blend of 32767 datasets: at most 32766 can be mixed",
               [] { normalize_blend(std::vector<double>(32767, 1.0)); });
}

TEST(BlendIndex, FilesThatDoNotFitAreRefused) {
  const std::vector<std::int64_t> sizes = {2, 1};
  const auto refuse = [&](std::vector<std::int16_t> dataset, std::vector<std::int64_t> sample,
                          const std::string& text) {
    const BlendIndex index{NpyArray(std::move(dataset)), NpyArray(std::move(sample))};
    expect_error(ExitCode::data, "'blend': " + text,
                 [&] { check_blend_index(index, sizes, 3, "'blend'"); });
  };
  EXPECT_EQ(check_blend_index(build_exhaustive_blend_index(sizes, 3), sizes, 3, "'blend'"), 3);
  refuse({0, 1}, {0}, "expected a dataset index and a dataset sample index of one length");
  refuse({0, 2}, {0, 0}, "entry 1 is sample 0 of dataset 2: not the next one of 2 datasets");
  refuse({0, -1}, {0, 0}, "entry 1 is sample 0 of dataset -1");
  refuse({0, 0}, {0, 0}, "entry 1 is sample 0 of dataset 0");
  refuse({0, 0, 0}, {0, 1, 2}, "the blend takes more samples of dataset 0 than the 2 it has");
}

// Rounded-up shares make the index longer than requested, and only the requested samples
// must exist.
TEST(BlendIndex, SamplesAfterTheRequestedOnesMayBeMissing) {
  std::vector<double> weights(21, 0.025);
  weights[0] = 0.5;
  for (const std::int64_t wanted : {1, 20, 21, 100, 1000}) {
    std::vector<std::int64_t> shares;
    for (const double weight : weights) shares.push_back(blend_share(weight, wanted));
    const BlendIndex index = build_blend_index(weights, wanted);
    const std::int64_t held = check_blend_index(index, shares, wanted, "'blend'");
    EXPECT_GE(held, wanted);
    for (std::int64_t i = 0; i < held; ++i)
      ASSERT_LT(index.sample(i), shares[index.dataset(i)]) << "sample " << i;
    if (held == index.samples()) continue;
    EXPECT_EQ(index.sample(held), shares[index.dataset(held)]);
    expect_error(ExitCode::data, "'blend': the blend takes more samples of dataset 0 than the",
                 [&] { check_blend_index(index, shares, held + 1, "'blend'"); });
  }
}

}  // namespace
}  // namespace trireme::data
