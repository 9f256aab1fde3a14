#include "data/gpt/gpt_dataset.hpp"

#include <set>

#include "data/dataset.hpp"
#include "dataset_files.hpp"

namespace trireme::data {
namespace {

class GptBlendTest : public ScratchTest {
 protected:
  void SetUp() override {
    // The tokens of each dataset tell it: a has 1000 and on, b 2000, c 3000.
    write_dataset<std::uint16_t>(folder_ / "a", std::vector<std::int32_t>(40, 9), TokenType::uint16,
                                 1000);
    write_dataset<std::uint16_t>(folder_ / "b", {100, 60, 3}, TokenType::uint16, 2000);
    write_dataset<std::uint16_t>(folder_ / "c", {50}, TokenType::uint16, 3000);
    config_ = {.prefixes = {folder_ / "a", folder_ / "b", folder_ / "c"},
               .weights = {2, 1, 1},
               .common = {.samples = 200, .format = {.sequence = 8, .vocab = 4000}}};
  }
  // The dataset that a sample comes from, by its tokens.
  static int origin(const GptDataset& dataset, std::int64_t sample) {
    std::vector<std::int32_t> tokens(9);
    dataset.read_tokens(sample, tokens);
    return tokens[0] / 1000 - 1;
  }
  std::vector<std::string> cached() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "cache/trireme_indices"))
      names.push_back(entry.path().filename().string());
    return names;
  }
  GptBlendConfig config_;
};

TEST_F(GptBlendTest, SamplesComeInTheBlendsOrder) {
  const GptDataset dataset = open_gpt_blend(config_);
  ASSERT_EQ(dataset.samples(), 200);
  const BlendIndex order = build_blend_index(normalize_blend(config_.weights), 200);
  std::vector<std::int32_t> mixed(9), alone(9);
  for (std::int64_t i = 0; i < 200; ++i) {
    const std::int64_t which = order.dataset(i);
    ASSERT_EQ(origin(dataset, i), which) << "sample " << i;
    const GptDataset corpus(open_gpt_split(dataset_config(config_, which)), config_.common.format);
    dataset.read_tokens(i, mixed);
    corpus.read_tokens(order.sample(i), alone);
    ASSERT_EQ(mixed, alone) << "sample " << i;
  }
  // Half a percent more than the share is built, and the datasets are repeated for it.
  EXPECT_EQ(dataset_config(config_, 0).samples, 101);
  EXPECT_EQ(dataset_config(config_, 1).samples, 51);
  EXPECT_EQ(summarize_blend(config_).datasets[2].epochs, 9);
}

TEST_F(GptBlendTest, ARunGoesOnWhereItStopped) {
  const GptDataset dataset = open_gpt_blend(config_);
  const auto take = [&](const GptDataset& from, std::int64_t consumed) {
    Batch batch;
    read_micro_batch(from, {.global_batch = 4, .micro_batch = 2}, consumed, 1, batch);
    const auto tokens = batch.tensor(field::kTokens);
    return std::vector<std::int32_t>(tokens.begin(), tokens.end());
  };
  for (std::int64_t consumed : {0, 4, 100, 196})
    EXPECT_EQ(take(dataset, consumed), take(open_gpt_blend(config_), consumed));
  EXPECT_NE(take(dataset, 0), take(dataset, 4));
}

TEST_F(GptBlendTest, TheBuilderWritesAndTheOthersWait) {
  int barriers = 0;
  const auto open = [&](bool builds) {
    return open_gpt_blend(config_, {.builds = builds, .barrier = [&] { ++barriers; }});
  };
  expect_error(ExitCode::io, "index.npy': No such file", [&] { open(false); });
  const GptDataset built = open(true), mapped = open(false);
  EXPECT_EQ(barriers, 3);
  EXPECT_EQ(mapped.blend()->dataset.serialize(), built.blend()->dataset.serialize());
  EXPECT_EQ(mapped.blend()->sample.serialize(), built.blend()->sample.serialize());
  EXPECT_EQ(cached().size(), 3u * 4 + 3);
  // A damaged index is made again.
  for (const std::string& name : cached())
    if (name.ends_with("-dataset_index.npy"))
      std::filesystem::resize_file(folder_ / "cache/trireme_indices" / name, 130);
  EXPECT_EQ(open(true).blend()->dataset.serialize(), built.blend()->dataset.serialize());
  EXPECT_EQ(open(false).samples(), 200);
  EXPECT_EQ(cached().size(), 3u * 4 + 3);
  config_.common.index_cache = folder_ / "a.bin" / "cache";
  expect_error(ExitCode::io, "name a folder that can be written in data.index_cache",
               [&] { open(true); });
}

TEST_F(GptBlendTest, WithoutWeightsEachDatasetIsUsedOnce) {
  config_.weights.clear();
  config_.common.samples = 60;
  const GptDataset dataset = open_gpt_blend(config_);
  ASSERT_EQ(dataset.samples(), 60);
  // (360 - 1) / 8 = 44, (163 - 1) / 8 = 20 and (50 - 1) / 8 = 6 samples, mixed in proportion.
  std::vector<int> taken(3);
  for (std::int64_t i = 0; i < 60; ++i) ++taken[origin(dataset, i)];
  EXPECT_NEAR(taken[0], 60 * 44 / 70., 1.5);
  EXPECT_NEAR(taken[1], 60 * 20 / 70., 1.5);
  config_.common.samples = 71;
  expect_error(ExitCode::deck,
               "the train split of 3 datasets without weights has 70 samples, the run takes 71; "
               "give them weights, which let datasets be repeated: [1, '" +
                   (folder_ / "a").string() + "', ...]",
               [&] { open_gpt_blend(config_); });
}

TEST_F(GptBlendTest, ManySmallSharesLeaveNoDatasetShort) {
  // The shares, rounded up, are 10 + 20 * 1 samples; mixed to the end, `a` would give 15 of its 12.
  config_.prefixes = {folder_ / "a"};
  write_dataset<std::uint16_t>(folder_ / "a", {100}, TokenType::uint16, 1000);
  write_dataset<std::uint16_t>(folder_ / "b", {100}, TokenType::uint16, 2000);
  config_.prefixes.resize(21, folder_ / "b");
  config_.weights.assign(21, 0.025);
  config_.weights[0] = 0.5;
  config_.common.samples = 20;
  ASSERT_EQ(summarize_blend(config_).datasets[0].samples, 12);
  for (int opened = 0; opened < 2; ++opened) {  // built, then from the cache
    const GptDataset dataset = open_gpt_blend(config_);
    EXPECT_EQ(dataset.blend()->samples(), 30);
    ASSERT_GE(dataset.samples(), 20);
    ASSERT_LT(dataset.samples(), 30);
    for (std::int64_t i = 0; i < dataset.samples(); ++i)
      EXPECT_EQ(origin(dataset, i), dataset.blend()->dataset(i) == 0 ? 0 : 1) << "sample " << i;
  }
}

TEST_F(GptBlendTest, WithoutASizeEachDatasetIsUsedOnce) {
  config_.common.samples.reset();
  const GptDataset dataset = open_gpt_blend(config_);
  ASSERT_EQ(dataset.samples(), 70);
  std::set<std::pair<std::int64_t, std::int64_t>> seen;
  for (std::int64_t i = 0; i < 70; ++i)
    seen.emplace(dataset.blend()->dataset(i), dataset.blend()->sample(i));
  EXPECT_EQ(seen.size(), 70u);
}

TEST_F(GptBlendTest, IdentityIsThatOfTheDocuments) {
  config_.common.split_weights = {3, 1};
  const auto identity = [](const GptBlendConfig& config) {
    return identify_documents(summarize_blend(config));
  };
  config_.prefixes.pop_back();  // which has a document alone
  config_.weights.pop_back();
  const std::string before = identity(config_);
  EXPECT_EQ(before.size(), 16u);
  EXPECT_EQ(before.find_first_not_of("0123456789abcdef"), std::string::npos) << before;

  GptBlendConfig longer = config_;
  longer.weights = {1, 5};
  longer.common.samples = 1000;
  EXPECT_EQ(identity(longer), before);
  GptBlendConfig swapped = config_;
  std::swap(swapped.prefixes[0], swapped.prefixes[1]);
  EXPECT_NE(identity(swapped), before);
  GptBlendConfig whole = config_;
  whole.common.split_weights.clear();
  EXPECT_NE(identity(whole), before);

  // The documents of the part are the first two of b.
  write_dataset<std::uint16_t>(folder_ / "b", {100, 60, 4}, TokenType::uint16, 2000);
  EXPECT_EQ(identity(config_), before);
  write_dataset<std::uint16_t>(folder_ / "b", {60, 100, 3}, TokenType::uint16, 2000);
  EXPECT_NE(identity(config_), before);
}

TEST_F(GptBlendTest, ASingleDatasetIsNotMixed) {
  config_.prefixes = {folder_ / "b"};
  config_.weights.clear();
  const GptDataset dataset = open_gpt_blend(config_);
  EXPECT_FALSE(dataset.blend().has_value());
  EXPECT_EQ(dataset_config(config_, 0).samples, 200);
  EXPECT_GE(dataset.samples(), 200);
  config_.weights = {3};
  EXPECT_TRUE(open_gpt_blend(config_).blend().has_value());
  EXPECT_EQ(dataset_config(config_, 0).samples, 201);
}

TEST_F(GptBlendTest, EveryDatasetNeedsASample) {
  config_.common.split_weights = {3, 1};
  config_.common.split = Split::valid;
  expect_error(ExitCode::deck, "c' is too small for one sample of 9 tokens: data.split = 3,1 gives",
               [&] { open_gpt_blend(config_); });
  // Datasets of a part's own are not split.
  config_.common.split_weights.clear();
  open_gpt_blend(config_);
  write_dataset<std::uint16_t>(folder_ / "c", {0}, TokenType::uint16);
  expect_error(ExitCode::deck,
               "c' is too small for one sample of 9 tokens: it has 1 document with 0 tokens, and "
               "no number of epochs changes that; give it more data",
               [&] { summarize_blend(config_); });
  expect_error(ExitCode::io, "d.idx': No such file", [&] {
    config_.prefixes[2] = folder_ / "d";
    open_gpt_blend(config_);
  });
}

}  // namespace
}  // namespace trireme::data
