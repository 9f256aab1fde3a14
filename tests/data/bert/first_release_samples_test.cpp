#include "data/bert/sample.hpp"

#include "bert/bert_samples.hpp"

namespace trireme::data {
namespace {

using FirstReleaseTest = ScratchTest;

TEST_F(FirstReleaseTest, EqualTheReferenceOn200Corpora) {
  const auto lines = run_reference("first-release", folder_, 200);
  if (lines.empty()) GTEST_SKIP() << "/usr/bin/python3 has no numpy (Debian: python3-numpy)";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    SCOPED_TRACE(lines[i].dump().substr(0, 300));
    const auto dataset = std::make_shared<const IndexedDataset>(folder_ / std::to_string(i));
    const SequenceRange documents = {lines[i]["documents"][0], lines[i]["documents"][1]};
    // The documents of several datasets are numbered on.
    const std::int64_t middle = documents.begin + documents.size() / 2;
    const FirstReleaseSamples samples(
        {.corpora = {{dataset, {documents.begin, middle}}, {dataset, {middle, documents.end}}},
         .samples = 6,
         .short_probability = lines[i]["short"],
         .seed = lines[i]["seed"],
         .format = format_of(lines[i])});
    for (std::size_t k = 0; k < lines[i]["read"].size(); ++k)
      expect_sample(read_sample(samples, static_cast<std::int64_t>(k)), lines[i]["read"][k]);
    if (HasFailure()) break;
  }
}

TEST_F(FirstReleaseTest, RefusesTooFewDocuments) {
  write_dataset<std::uint16_t>(folder_ / "a", {0, 8, 0}, TokenType::uint16, 10);
  FirstReleaseConfig config{
      .corpora = {{std::make_shared<const IndexedDataset>(folder_ / "a"), {0, 3}}},
      .format = {.sequence = 16, .vocabulary = make_vocabulary(100, 3)}};
  expect_error(ExitCode::deck, "1 of the 3 documents of the split have tokens",
               [&] { FirstReleaseSamples samples(config); });
  config.seed = -1;
  expect_error(ExitCode::deck, "data.seed = -1", [&] { FirstReleaseSamples samples(config); });
  config.short_probability = -0.5;
  expect_error(ExitCode::deck, "data.bert.short_sequence = -0.5",
               [&] { FirstReleaseSamples samples(config); });
}

}  // namespace
}  // namespace trireme::data
