#include "evaluate/tasks.hpp"

#include <gtest/gtest.h>

#include <array>
#include <fstream>

#include "../message_of.hpp"
#include "../scratch_folder.hpp"
#include "../tokenizer/packed.hpp"

namespace trireme::evaluate {
namespace {

std::vector<std::int32_t> counting(std::int64_t size) {
  std::vector<std::int32_t> tokens(size);
  for (std::int64_t i = 0; i < size; ++i) tokens[i] = static_cast<std::int32_t>(i);
  return tokens;
}

TEST(WindowDataset, ScoresEveryTokenButTheFirstOnce) {
  const std::int64_t sequence = 8;
  for (const std::int64_t step : {1, 3, 8})
    for (std::int64_t size = 2; size < 40; ++size) {
      const WindowDataset windows(counting(size), sequence, step, /*padding=*/99);
      std::vector<std::int32_t> tokens(sequence), labels(sequence);
      const std::array<std::span<std::int32_t>, 2> tensors{tokens, labels};
      std::vector<int> scored(size, 0);
      for (std::int64_t k = 0; k < windows.samples(); ++k) {
        windows.read(k, tensors);
        int labels_of_window = 0;
        for (std::int64_t i = 0; i < sequence; ++i) {
          if (labels[i] == data::kIgnoredLabel) continue;
          ++labels_of_window;
          ++scored[labels[i]];
          EXPECT_EQ(tokens[i] + 1, labels[i]);
          EXPECT_GE(i, k == 0 ? 0 : sequence - step) << "has less context than the step leaves";
        }
        EXPECT_GT(labels_of_window, 0) << "window " << k << " of " << size << " scores nothing";
      }
      EXPECT_EQ(scored[0], 0);
      for (std::int64_t i = 1; i < size; ++i)
        EXPECT_EQ(scored[i], 1) << "token " << i << " of " << size << ", step " << step;
    }
}

TEST(TextTasks, ACompressedTextIsScoredAsTheText) {
  const ScratchFolder folder;
  const std::filesystem::path plain = folder.path() / "t.txt", packed = folder.path() / "t.txt.gz";
  const std::string text = "One line .\nAnother line .\n";
  std::ofstream(plain) << text;
  tokenizer::write_packed(packed, ARCHIVE_FILTER_GZIP, text);
  const auto bytes = tokenizer::make_tokenizer({.type = "bytes"});
  for (const char* name : {"perplexity", "wikitext"}) {
    const auto tokens_of = [&](const std::filesystem::path& file) {
      const auto task = make_task({.name = name, .file = file.string()}, *bytes, /*sequence=*/64);
      std::vector<std::int32_t> tokens(64), labels(64);
      task->dataset().read(0, std::array<std::span<std::int32_t>, 2>{tokens, labels});
      return tokens;
    };
    EXPECT_EQ(tokens_of(plain), tokens_of(packed)) << name;
    std::ofstream(folder.path() / "bad.txt") << "a\xFF";
    EXPECT_EQ(message_of<DataError>([&] { tokens_of(folder.path() / "bad.txt"); }),
              (folder.path() / "bad.txt").string() + ": not UTF-8 at byte 2 (0xff)");
  }
}

TEST(TextTasks, WindowsMayBeShorterThanTheUsualStep) {
  const ScratchFolder folder;
  const std::filesystem::path file = folder.path() / "t.txt";
  std::ofstream(file) << std::string(64, 'a');
  const auto bytes = tokenizer::make_tokenizer({.type = "bytes"});
  const TaskSpec spec{.name = "wikitext", .file = file.string()};
  EXPECT_EQ(make_task(spec, *bytes, /*sequence=*/16)->dataset().samples(), 4);
  EXPECT_EQ(make_task(spec, *bytes, /*sequence=*/32)->dataset().samples(), 2);
}

}  // namespace
}  // namespace trireme::evaluate
