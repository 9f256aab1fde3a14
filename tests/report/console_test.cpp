#include "report/reporter.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <limits>

#include "../scratch_folder.hpp"
#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme::report {
namespace {

TrainEvent example() {
  return {.iteration = 30,
          .consumed_samples = 1920,
          .consumed_tokens = 1920 * 1024,
          .loss = 10.17721,
          .grad_norm = 16.666,
          .learning_rate = 7.03125e-7,
          .loss_scale = 262144,
          .global_batch = 64,
          .ms = 1423.84,
          .tokens_per_second = 46028.6,
          .model_tflops_per_rank = 38.1234,
          .mfu = 0.3812};
}

constexpr RunLength kRun{.iterations = 50, .samples = 50 * 64};

TEST(TrainingLine, IsMegatronsByteForByte) {
  EXPECT_EQ(
      training_line(example(), kRun),
      " iteration       30/      50 | consumed samples:         1920 | elapsed time per "
      "iteration (ms): 1423.8 | learning rate: 7.031E-07 | global batch size:    64 | lm "
      "loss: 1.017721E+01 | loss scale: 262144.0 | grad norm: 16.666 | number of skipped "
      "iterations:   0 | number of nan iterations:   0 |"
      " tokens per second: 46028.6 | model TFLOP/s per GPU: 38.123 | MFU: 38.1% | ETA: 28s |");
}

TEST(TrainingLine, HasMegatronsFieldForTheSentenceLoss) {
  TrainEvent event = example();
  event.sentence_loss = 0.6931472;
  EXPECT_NE(training_line(event, kRun)
                .find("| lm loss: 1.017721E+01 | sop loss: 6.931472E-01 | loss scale: 262144.0 |"),
            std::string::npos);
}

TEST(TrainingLine, HasMegatronsFieldsForNorms) {
  TrainEvent event = example();
  event.parameter_norm = 206.12345;
  event.gradient_zeros = 40960;
  EXPECT_NE(training_line(event, kRun)
                .find("| loss scale: 262144.0 | grad norm: 16.666 | num zeros: 40960.0 | params "
                      "norm: 206.123 | number of skipped iterations:   0 |"),
            std::string::npos);
}

TEST(TrainingLine, SaysSoWithoutAPeakAndWithoutALoss) {
  TrainEvent event = example();
  event.mfu.reset();
  event.loss = std::numeric_limits<double>::quiet_NaN();
  event.grad_norm = std::numeric_limits<double>::infinity();
  event.skipped = 2;
  event.nan = 10;
  const std::string line = training_line(event, kRun);
  EXPECT_NE(line.find("| lm loss: NAN | loss scale: 262144.0 | grad norm: inf | number of skipped "
                      "iterations:   2 | number of nan iterations:  10 |"),
            std::string::npos)
      << line;
  EXPECT_NE(line.find("| MFU: - | ETA:"), std::string::npos) << line;
}

TEST(TrainingLine, CountsTheTimeLeftBySamples) {
  TrainEvent event = example();
  event.tokens_per_second = 1024;  // a sample a second
  const auto left = [&](std::int64_t samples) {
    return training_line(event, {.iterations = 5030, .samples = 1920 + samples});
  };
  EXPECT_NE(left(5 * 3600).find("| ETA: 5h00m |"), std::string::npos) << left(5 * 3600);
  EXPECT_NE(left(0).find("| ETA: 0s |"), std::string::npos) << left(0);
  event.tokens_per_second = 0;
  EXPECT_NE(left(64).find("| ETA: 0s |"), std::string::npos) << left(64);
}

TEST(ValidationLines, AreMegatrons) {
  const std::string line =
      " validation loss at iteration 100 | lm loss value: 3.123456E+00 | lm loss PPL: 2.272478E+01 "
      "| ";
  const std::string rule(line.size() + 1, '-');
  EXPECT_EQ(validation_lines({.iteration = 100, .split = "valid", .loss = 3.123456}),
            rule + "\n" + line + "\n" + rule);
}

TEST(ValidationLines, HaveTheSentenceTask) {
  EXPECT_NE(validation_lines({.iteration = 7,
                              .split = "valid",
                              .loss = 1,
                              .sentence_loss = 0.5,
                              .sentence_accuracy = 0.8125})
                .find(" | lm loss PPL: 2.718282E+00 | sop loss value: 5.000000E-01 | sop loss PPL: "
                      "1.648721E+00 | sop accuracy: 81.25% | \n"),
            std::string::npos);
}

TEST(ValidationLines, NameTheSplitAtTheEnd) {
  const std::string line =
      " validation loss at iteration 7 on validation set | lm loss value: 1.000000E+00 | lm loss "
      "PPL: 2.718282E+00 | ";
  const std::string rule(line.size() + 1, '-');
  EXPECT_EQ(validation_lines({.iteration = 7, .split = "valid", .loss = 1, .at_end = true}),
            rule + "\n" + line + "\n" + rule);
  EXPECT_NE(validation_lines({.iteration = 7, .split = "test", .loss = 1, .at_end = true})
                .find("\n validation loss at iteration 7 on test set | lm loss value: "),
            std::string::npos);
}

TEST(TimersLines, AreMegatrons) {
  EXPECT_EQ(
      timers_lines({.iteration = 20,
                    .timers = {{.name = "forward-compute", .min_ms = 12.345, .max_ms = 1234.5},
                               {.name = "optimizer", .min_ms = 0, .max_ms = 0.004}}}),
      "(min, max) time across ranks (ms):\n"
      "    forward-compute ................................: (12.35, 1234.50)\n"
      "    optimizer ......................................: (0.00, 0.00)");
}

TEST(MemoryLines, AreMegatronsWithPythonsNumbers) {
  constexpr std::int64_t kMegabyte = 1 << 20;
  EXPECT_EQ(
      memory_lines({.iteration = 20,
                    .planned_bytes = 4096,
                    .resident_bytes = 2048,
                    .peak_bytes = 3072,
                    .ranks = {{.rank = 0,
                               .allocated = 1647071744,
                               .max_allocated = 1571 * kMegabyte,
                               .reserved = 0,
                               .max_reserved = 1},
                              {.rank = 4, .allocated = 100000, .reserved = 80'000'000'001}}}),
      "[Rank 0] (after 20 iterations) memory (MB) | allocated: 1570.77001953125 | max allocated: "
      "1571.0 | reserved: 0.0 | max reserved: 9.5367431640625e-07\n"
      "[Rank 4] (after 20 iterations) memory (MB) | allocated: 0.095367431640625 | max allocated: "
      "0.0 | reserved: 76293.94531345367 | max reserved: 0.0\n"
      " memory of the rank with the highest peak after iteration 20 | planned: 4.0 KiB | resident: "
      "2.0 KiB | "
      "peak: 3.0 KiB |");
}

TEST(DatetimeLine, IsMegatrons) {
  ::setenv("TZ", "UTC", 1);
  ::tzset();
  EXPECT_EQ(datetime_line("before the start of training step", 1686758892.75),
            "[before the start of training step] datetime: 2023-06-14 16:08:12 ");
}

TEST(OtherLines, SayWhatHappened) {
  EXPECT_EQ(start_lines({.program = "trireme-pretrain",
                         .version = "0.1.0",
                         .layout = {.tensor = 2, .pipeline = 2, .data = 1},
                         .partition = "2-2",
                         .hosts = {"a", "b"},
                         .parameters = 1234,
                         .model = {.flops_per_token = 8.5e8, .flops_formula = "6 P: no head"}}),
            "trireme-pretrain 0.1.0 | 4 ranks on a, b | tensor 2 x pipeline 2 x data 1 | 1234 "
            "parameters\n"
            "model FLOPs 8.5000E+08 a token = 6 P: no head");
  EXPECT_EQ(checkpoint_line({.iteration = 10, .path = "c/x.h5", .bytes = 4096, .seconds = 1.25}),
            "  successfully saved checkpoint at iteration      10 to c/x.h5 (4.0 KiB in 1.2 s)");
  EXPECT_EQ(stop_line({.reason = "time limit", .iteration = 12, .exit_code = 75}),
            "stopped after iteration 12: time limit (exit code 75)");
}

TEST(ShortTrainingLine, FitsATerminal) {
  EXPECT_EQ(
      short_training_line({.iteration = 30,
                           .consumed_samples = 1920,
                           .consumed_tokens = 1966080,
                           .loss = 10.17721,
                           .grad_norm = 16.666,
                           .learning_rate = 7.03125e-7,
                           .ms = 1423.8,
                           .tokens_per_second = 46028.9,
                           .mfu = 0.382,
                           .skipped = 1},
                          {.iterations = 5000, .samples = 320000}),
      "  30/5000 | loss 10.1772 | norm 16.7 | lr 7.03e-07 | 1424 ms | 46k tokens/s | MFU 38.2% "
      "| ETA 1h57m | 1 skipped");
}

TEST(GpuLine, SpansTheGpusThatReport) {
  const double kNan = std::nan("");
  EXPECT_EQ(gpu_line({20,
                      {{"a", 0, 97.6, 2 << 20, 4 << 20, 61, 600.5},
                       {"b", 1, 12.2, 1 << 20, 4 << 20, 75, 50},
                       {"b", 2, kNan, kNan, kNan, kNan, kNan}}}),
            " use of 3 GPUs until iteration 20 | utilisation: 12% min, 98% max | memory: "
            "2.0 MiB max | temperature: 75 C max | power: 650 W total |");
}

TEST(Console, PrintsToBothAndFlushes) {
  const ScratchFolder folder;
  const auto path = folder.path() / "run" / "console.log";
  testing::internal::CaptureStdout();
  Console console(path, OutputFile::Mode::fresh);
  console.print("one");
  EXPECT_EQ(read_file(path), "one\n");
  Console(path, OutputFile::Mode::resume).print("two\nthree");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "one\ntwo\nthree\n");
  EXPECT_EQ(read_file(path), "one\ntwo\nthree\n");
  Console anew(path, OutputFile::Mode::fresh);
  EXPECT_EQ(read_file(path), "");
}

TEST(Console, NamesAFileThatCannotBeWritten) {
  try {
    Console console("/dev/null/console.log", OutputFile::Mode::fresh);
    FAIL();
  } catch (const IoError& error) {
    EXPECT_EQ(std::string(error.what()).find("cannot make folder '/dev/null'"), 0u) << error.what();
  }
  Console full("/dev/full", OutputFile::Mode::fresh);
  testing::internal::CaptureStdout();
  EXPECT_THROW(full.print("text"), IoError);
  testing::internal::GetCapturedStdout();
}

}  // namespace
}  // namespace trireme::report
