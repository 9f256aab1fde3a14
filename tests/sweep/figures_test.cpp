#include "sweep/figures.hpp"

#include "sweeps.hpp"

namespace trireme::sweep {
namespace {

std::string train(int iteration, double ms, double loss) {
  return fmt::format(
      "{{\"kind\":\"train\",\"iteration\":{},\"loss\":{},\"global_batch\":8,\"ms\":{},"
      "\"tokens_per_second\":{},\"mfu\":null}}\n",
      iteration, loss, ms, 1e6 / ms);
}

using FiguresTest = SweepTest;

TEST_F(FiguresTest, MediansLeaveWarmUpOut) {
  write(scratch_ / "metrics.jsonl",
        "{\"kind\":\"start\",\"iteration\":0}\n" + train(1, 900, 5) + train(2, 10, 4) +
            "{\"kind\":\"start\",\"iteration\":2}\n" + train(3, 800, 3) + train(4, 20, 2) +
            train(5, 40, 1.5) +
            "{\"kind\":\"eval\",\"split\":\"valid\",\"loss\":1.75}\n"
            "{\"kind\":\"eval\",\"split\":\"test\",\"loss\":9}\n"
            "{\"kind\":\"memory\",\"peak_bytes\":300,\"gpu_bytes\":200}\n"
            "{\"kind\":\"stop\",\"exit_code\":75}\n"
            "{\"kind\":\"tra");
  const Figures figures = read_figures(scratch_);
  EXPECT_TRUE(figures.started);
  EXPECT_EQ(figures.exit_code, 75);
  EXPECT_EQ(figures.iteration, 5);
  EXPECT_EQ(figures.loss, 1.5);
  EXPECT_EQ(figures.valid_loss, 1.75);
  EXPECT_EQ(figures.ms, 20);
  EXPECT_EQ(figures.samples_per_second, 400);
  EXPECT_EQ(figures.tokens_per_second, 5e4);
  EXPECT_EQ(figures.mfu, std::nullopt);
  EXPECT_EQ(figures.memory_bytes, 200);
}

TEST_F(FiguresTest, OneLineIsBetterThanNone) {
  write(scratch_ / "metrics.jsonl",
        "{\"kind\":\"stop\",\"exit_code\":0}\n{\"kind\":\"start\"}\n" + train(1, 30, 5));
  const Figures figures = read_figures(scratch_);
  EXPECT_EQ(figures.ms, 30);
  EXPECT_EQ(figures.exit_code, std::nullopt) << "started again since";
}

TEST_F(FiguresTest, NoMetricsAndNoSense) {
  EXPECT_FALSE(read_figures(scratch_ / "absent").started);
  write(scratch_ / "metrics.jsonl",
        "[]\n3\n{}\n{\"kind\":7}\n{\"kind\":\"train\",\"ms\":\"x\",\"loss\":null}\n");
  const Figures figures = read_figures(scratch_);
  EXPECT_FALSE(figures.started);
  EXPECT_EQ(figures.ms, std::nullopt);
}

}  // namespace
}  // namespace trireme::sweep
