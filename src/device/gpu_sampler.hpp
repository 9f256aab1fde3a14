// A thread that looks at this node's GPUs every second, so that nothing else has to.
#pragma once

#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "device/nvml.hpp"

namespace trireme::device {

/// Sums up readings: means of utilisation and power, the highest memory and temperature.
class GpuMeans {
 public:
  /// Readings of the same GPUs in the same order every time.
  void add(const std::vector<GpuReading>& readings);
  /// The summary since it was last taken; where nothing came since, what was taken last.
  std::vector<GpuReading> take();

 private:
  /// Sum and number of the values that were told.
  struct Mean {
    double sum = 0.0;
    int count = 0;
    void add(double value);
    double value() const;
  };
  struct Total {
    GpuReading highest;
    Mean utilisation, power;
  };
  std::vector<Total> totals_;
  std::vector<GpuReading> taken_;
};

/// One line for people, without its newline:
/// "2026-11-21 14:00:01 GPU 0: 97 %, 61234 MiB of 81559 MiB, 65 C, 612.3 W". `time` in seconds
/// since 1970, shown in local time.
std::string reading_line(const GpuReading& reading, double time);

/// Samples GPUs until it is destroyed.
class GpuSampler {
 public:
  /// Every ten seconds the summary of these is appended to the file at `log`, a line for each GPU;
  /// one that cannot be written is left alone.
  GpuSampler(Nvml nvml, const std::filesystem::path& log);
  ~GpuSampler();
  GpuSampler(const GpuSampler&) = delete;

  /// The number of GPUs, which does not change.
  int gpus() const { return gpus_; }
  /// What the GPUs did since this was last asked.
  std::vector<GpuReading> take();

 private:
  void run();
  void write_log();

  Nvml nvml_;
  std::filesystem::path log_;
  int gpus_ = 0;
  GpuMeans for_log_;  ///< the thread's own
  std::mutex mutex_;  ///< of the next three
  std::condition_variable stopped_;
  bool stop_ = false;
  GpuMeans for_caller_;
  std::thread thread_;
};

}  // namespace trireme::device
