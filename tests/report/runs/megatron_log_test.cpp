#include "report/runs/run_history.hpp"

#include <gtest/gtest.h>

namespace trireme::report {
namespace {

// Megatron-LM 23.04, as FASOP's jobs log it.
constexpr const char* kLine =
    " iteration       30/      50 | consumed samples:         1920 | elapsed time per iteration "
    "(ms): 1423.8 | learning rate: 7.031E-07 | global batch size:    64 | lm loss: 1.017721E+01 | "
    "loss scale: 262144.0 | grad norm: 16.666 | number of skipped iterations:   0 | number of nan "
    "iterations:   0 |";

TEST(MegatronLogTest, ReadsItsTrainingLine) {
  MegatronLog log;
  const auto row = log.take(kLine);
  ASSERT_TRUE(row);
  EXPECT_EQ(row->iteration, 30);
  EXPECT_DOUBLE_EQ(*row->loss, 10.17721);
  EXPECT_DOUBLE_EQ(*row->ms, 1423.8);
  EXPECT_FALSE(row->tokens_per_second) << "the sequence is not known";
  EXPECT_FALSE(row->tflops);
}

TEST(MegatronLogTest, ReadsTheLinesOfOtherVersions) {
  MegatronLog log;
  auto row = log.take(
      " [2026-11-21 01:57:38.467563] iteration        1/       6 | consumed samples:           16 "
      "| "
      "elapsed time per iteration (ms): 1035.8 | throughput per GPU (TFLOP/s/GPU): 38.5 | learning "
      "rate: 1.000000E-04 | global batch size:    16 | lm loss: 5.962336E+00 | loss scale: 1.0 "
      "|\r");
  ASSERT_TRUE(row) << "today's";
  EXPECT_DOUBLE_EQ(*row->tflops, 38.5);
  row = log.take(
      " iteration      100/  320000 | elapsed time per iteration (ms): 512.3 | learning rate "
      "1.500E-04 | lm loss 7.212E+00 | loss scale 65536.0 |");
  ASSERT_TRUE(row) << "the first";
  EXPECT_DOUBLE_EQ(*row->loss, 7.212);
  row = log.take(
      "[default7]: iteration       10/     748 | consumed samples:           20 | consumed tokens: "
      " "
      "       2560 | elapsed time per iteration (s): 0.25 | learning rate: 1.000E-06 | global "
      "batch "
      "size:     2 | lm loss: 1.03E+01 | samples per second: 8.000 | TFLOPs: 12.34 |");
  ASSERT_TRUE(row) << "BigScience's";
  EXPECT_DOUBLE_EQ(*row->ms, 250);
  EXPECT_DOUBLE_EQ(*row->tflops, 12.34);
  row = log.take(
      " iteration       30/      50 | elapsed time per iteration (ms): 10.0 | lm loss: 2.0 | "
      "tokens "
      "per second: 46028.5 | model TFLOP/s per GPU: 38.504 | MFU: 25.0% | ETA: 1h07m |");
  ASSERT_TRUE(row) << "ours";
  EXPECT_DOUBLE_EQ(*row->tokens_per_second, 46028.5);
  EXPECT_DOUBLE_EQ(*row->tflops, 38.504);
  EXPECT_DOUBLE_EQ(*row->mfu, 0.25);
}

TEST(MegatronLogTest, TakesFieldsBeforeACutAlone) {
  const std::string line = kLine;
  const std::size_t loss = line.find("lm loss: 1.0177") + 15;
  const auto row = MegatronLog().take(line.substr(0, loss));
  ASSERT_TRUE(row);
  EXPECT_FALSE(row->loss);
  EXPECT_DOUBLE_EQ(*row->ms, 1423.8);
  EXPECT_FALSE(MegatronLog().take(line.substr(0, 25)));
}

TEST(MegatronLogTest, LeavesOtherLinesAlone) {
  MegatronLog log;
  for (const char* line :
       {"", "training ...", "time (ms) | forward-compute: 1.0 | backward-compute: 2.0",
        " validation loss at iteration 100 | lm loss value: 3.1E+00 | lm loss PPL: 2.2E+01 | ",
        "saving checkpoint at iteration 10/20", "iteration a/b | lm loss: 1 |",
        "iteration 1e99/ 2 | lm loss: 1 |", "\x80\xff | iteration /", "iteration"})
    EXPECT_FALSE(log.take(line)) << line;
  EXPECT_EQ(log.memory(), 0);
}

TEST(MegatronLogTest, InfersSpeedFromTheArguments) {
  MegatronLog log;
  for (const char* line : {"  hidden_size ..................................... 1024\r",
                           "  num_layers ...................................... 24",
                           "0:   seq_length ...................................... 1024",
                           "  world_size ...................................... 4",
                           "  padded_vocab_size ............................... None",
                           " > padded vocab (size: 50257) with 47 dummy tokens (new size: 50304)"})
    EXPECT_FALSE(log.take(line));
  const auto row = log.take(kLine);
  EXPECT_NEAR(*row->tokens_per_second, 64 * 1024 / 1.4238, 1e-6);
  // 72 l h^2 (1 + s / (12 h) + V / (12 l h)) FLOPs a token.
  EXPECT_NEAR(*row->tflops, 64 * 1024 / 1.4238 * 2.272e9 / 4 / 1e12, 0.01);
}

TEST(MegatronLogTest, TheMlpIsThatOfTheArguments) {
  const auto tflops = [](const char* ffn) {
    MegatronLog log;
    for (const char* line : {"  hidden_size ......... 1024", "  num_layers .......... 24",
                             "  seq_length ......... 1024", "  world_size .......... 4",
                             "  padded_vocab_size ........ 50304", ffn})
      log.take(line);
    return *log.take(kLine)->tflops;
  };
  EXPECT_DOUBLE_EQ(tflops("  ffn_hidden_size ......... 4096"), tflops(""));
  EXPECT_DOUBLE_EQ(tflops("  ffn_hidden_size ......... None"), tflops(""));
  const double more = 12.0 * 24 * 1024 * 4096 * 64 * 1024 / 1.4238 / 4 / 1e12;
  EXPECT_NEAR(tflops("  ffn_hidden_size ......... 8192") - tflops(""), more, 1e-6);
}

TEST(MegatronLogTest, MemoryIsThatOfTheRankWithTheHighestPeak) {
  MegatronLog log;
  log.take(
      "[Rank 0] (after 100 iterations) memory (MB) | allocated: 6689.83056640625 | max "
      "allocated: 13899.01416015625 | reserved: 23278.0 | max reserved: 23278.0");
  log.take(
      "[Rank 1] (after 100 iterations) memory (MB) | allocated: 1.0 | max allocated: 2.0 | "
      "reserved: 3.0 | max reserved: 24000.0\r");
  EXPECT_DOUBLE_EQ(log.memory(), 24000.0 * 1048576);
  log.take(
      " memory of the fullest rank after iteration 20 | planned: 1.0 GiB | resident: 20.0 MiB "
      "| peak: 29.5 MiB |");
  EXPECT_DOUBLE_EQ(log.memory(), 29.5 * 1048576) << "our own word for it";
}

}  // namespace
}  // namespace trireme::report
