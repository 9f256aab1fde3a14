#include "device/gpu_sampler.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <thread>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme::device {
namespace {

const double kNan = std::nan("");

TEST(GpuMeansTest, MeanUtilisationAndPowerHighestMemoryAndTemperature) {
  GpuMeans means;
  EXPECT_TRUE(means.take().empty());
  means.add({{3, 90, 10, 100, 60, 500}, {4, kNan, 5, 100, 40, 100}});
  means.add({{3, 70, 8, 100, 66, 300}, {4, kNan, 7, 100, 41, kNan}});
  const auto summary = means.take();
  ASSERT_EQ(summary.size(), 2u);
  EXPECT_EQ(summary[0].index, 3);
  EXPECT_EQ(summary[0].utilisation, 80);
  EXPECT_EQ(summary[0].memory, 10);
  EXPECT_EQ(summary[0].temperature, 66);
  EXPECT_EQ(summary[0].power, 400);
  EXPECT_TRUE(std::isnan(summary[1].utilisation));
  EXPECT_EQ(summary[1].power, 100);
  EXPECT_EQ(means.take()[0].utilisation, 80) << "nothing came since";
  means.add({{3, 10, 1, 100, 20, 30}, {4, 20, 1, 100, 20, 30}});
  EXPECT_EQ(means.take()[0].memory, 1);
}

TEST(ReadingLine, ShowsWhatIsTold) {
  setenv("TZ", "UTC", 1);
  constexpr double kMiB = 1 << 20;
  EXPECT_EQ(reading_line({2, 97.4, 61234 * kMiB, 81559 * kMiB, 65, 612.34}, 0),
            "1970-01-01 00:00:00 GPU 2: 97 %, 61234 MiB of 81559 MiB, 65 C, 612.3 W");
  EXPECT_EQ(reading_line({0, kNan, kNan, kNan, kNan, kNan}, 0),
            "1970-01-01 00:00:00 GPU 0: -, - of -, -, -");
}

/// With the stand-in for the library, which the loader finds because it is there already.
class NvmlTest : public testing::Test {
 protected:
  NvmlTest() : library_(dlopen(TRIREME_FAKE_NVML, RTLD_NOW | RTLD_LOCAL)) {}
  void SetUp() override { ASSERT_TRUE(library_) << dlerror(); }
  void* library_;
};

TEST_F(NvmlTest, ReadsEveryGpuOfTheNode) {
  const auto readings = Nvml({}).read();
  ASSERT_EQ(readings.size(), 2u);
  EXPECT_EQ(readings[0].index, 0);
  EXPECT_EQ(readings[0].utilisation, 97);
  EXPECT_EQ(readings[0].memory, 61.0 * (1 << 30));
  EXPECT_EQ(readings[0].memory_total, 80.0 * (1 << 30));
  EXPECT_EQ(readings[0].temperature, 65);
  EXPECT_EQ(readings[0].power, 612.3);
  EXPECT_EQ(readings[1].index, 1);
  EXPECT_TRUE(std::isnan(readings[1].utilisation)) << "it does not tell";
  EXPECT_TRUE(std::isnan(readings[1].power));
}

TEST_F(NvmlTest, ReadsTheGpusItIsGiven) {
  const auto readings = Nvml({"0000:3B:00.0"}).read();
  ASSERT_EQ(readings.size(), 1u);
  EXPECT_EQ(readings[0].index, 1);
  try {
    Nvml({"0000:99:00.0"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "nvmlDeviceGetHandleByPciBusId: Not Found");
  }
}

TEST_F(NvmlTest, TheSamplerWritesALineForEachGpuImmediately) {
  const auto log = std::filesystem::temp_directory_path() / fmt::format("gpus.{}", ::getpid());
  {
    GpuSampler sampler{Nvml({}), log};
    EXPECT_EQ(sampler.gpus(), 2);
    EXPECT_EQ(sampler.take().at(0).utilisation, 97);
  }
  const std::string text = read_file(log);
  EXPECT_NE(text.find("GPU 0: 97 %, 62464 MiB of 81920 MiB, 65 C, 612.3 W\n"), std::string::npos)
      << text;
  EXPECT_NE(text.find("GPU 1: -, 62464 MiB of 81920 MiB, 65 C, -\n"), std::string::npos) << text;
  std::filesystem::remove(log);
}

TEST_F(NvmlTest, TheSamplerLeavesADriverThatHangs) {
  const auto folder = std::filesystem::temp_directory_path();
  const auto log = folder / fmt::format("gpus.{}", ::getpid());
  const auto pipe = folder / fmt::format("utilisation.{}", ::getpid());
  setenv("FAKE_NVML", pipe.c_str(), 1);
  auto sampler = std::make_unique<GpuSampler>(Nvml({}), log);
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  int writer = -1;  // there is none until the thread reads, which then waits for what is written
  while ((writer = ::open(pipe.c_str(), O_WRONLY | O_NONBLOCK)) < 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const Stopwatch watch;
  sampler.reset();
  EXPECT_GT(watch.seconds(), 1.0) << "nothing hung";
  ::close(writer);  // lets the thread go
  unsetenv("FAKE_NVML");
  std::filesystem::remove(pipe);
  std::filesystem::remove(log);
}

}  // namespace
}  // namespace trireme::device
