#include "core/text.hpp"

#include <gtest/gtest.h>

#include "../scratch_folder.hpp"
#include "core/files.hpp"

namespace trireme {
namespace {

TEST(ProgressLine, ShowsShareRateAndTimeLeft) {
  EXPECT_EQ(progress_line("evaluating", "sample", 250, 1000, 10),
            "evaluating: 25.0 % | 250 samples of 1000 samples | 25 samples/s | ETA 30s");
  EXPECT_EQ(progress_line("tokenizing", "B", 5e6, 20e6, 2),
            "tokenizing: 25.0 % | 5.0 MB of 20.0 MB | 2.5 MB/s | ETA 6s");
  EXPECT_EQ(progress_line("reading", "line", 2.5e6, 0, 100), "reading: 2.5M lines | 25.0k lines/s");
  EXPECT_EQ(progress_line("reading", "line", 3, 0, 0), "reading: 3 lines | 0 lines/s");
}

TEST(ProgressLine, ATotalThatWasTooLowIsLeftOut) {
  EXPECT_EQ(progress_line("tokenizing", "B", 5e6, 1e6, 2), "tokenizing: 5.0 MB | 2.5 MB/s");
}

TEST(Progress, PrintsALineEveryThirtySecondsIntoAFile) {
  const ScratchFolder folder;
  const auto path = folder.path() / "log";
  std::FILE* const out = std::fopen(path.c_str(), "w");
  double now = 0;
  {
    Progress progress("evaluating", "sample", 100, out, [&] { return now; });
    for (; now <= 65; ++now) progress.update(now);
  }
  std::fclose(out);
  EXPECT_EQ(read_file(path),
            "evaluating: 30.0 % | 30 samples of 100 samples | 1 sample/s | ETA 1m10s\n"
            "evaluating: 60.0 % | 60 samples of 100 samples | 1 sample/s | ETA 40s\n");
}

TEST(Progress, PrintsNothingWithoutAFile) {
  double now = 1000;
  Progress progress("evaluating", "sample", 100, nullptr, [&] { return now; });
  progress.update(50);
}

}  // namespace
}  // namespace trireme
