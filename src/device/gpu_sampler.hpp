// GPU measurements through NVIDIA's management library (NVML).
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/system/process.hpp"

namespace trireme::device {

/// A GPU at one moment. NaN is what it does not tell.
struct GpuReading {
  int index = 0;           ///< among the node's GPUs, in the driver's order
  double utilisation = 0;  ///< percent of about the last second in which kernels ran
  double memory = 0;       ///< bytes in use, by anything
  double memory_total = 0;
  double temperature = 0;  ///< degrees Celsius
  double power = 0;        ///< watts
};

/// NVIDIA's management library, loaded when it is asked for: programs are not linked with it.
class Nvml {
 public:
  /// Opens the GPUs of these PCI bus ids; without any, all of the node. Throws Error (exit 1) with
  /// the loader's or the library's own words.
  explicit Nvml(const std::vector<std::string>& bus_ids);

  /// Every GPU now; takes milliseconds.
  std::vector<GpuReading> read() const;

 private:
  // The library's interface, which keeps its old functions: declared here, since its header comes
  // with CUDA's alone. https://docs.nvidia.com/deploy/nvml-api
  using Status = int;
  using Gpu = struct nvmlDevice_st*;
  struct Utilisation {
    unsigned gpu, memory;
  };
  struct Memory {
    unsigned long long total, free, used;
  };
  void check(Status status, const char* call) const;
  GpuReading read(Gpu gpu) const;

  SharedLibrary library_;
  const char* (*error_string_)(Status);
  Status (*get_index_)(Gpu, unsigned*);
  Status (*get_utilisation_)(Gpu, Utilisation*);
  Status (*get_memory_)(Gpu, Memory*);
  Status (*get_temperature_)(Gpu, int, unsigned*);
  Status (*get_power_)(Gpu, unsigned*);
  std::vector<Gpu> gpus_;
};

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
  /// Leaves the thread behind where the driver does not answer for seconds.
  ~GpuSampler();
  GpuSampler(const GpuSampler&) = delete;

  /// The number of GPUs, which does not change.
  int gpus() const { return gpus_; }
  /// What the GPUs did since this was last asked.
  std::vector<GpuReading> take();

 private:
  /// What the thread works with, which may outlive the sampler.
  struct Samples;

  std::shared_ptr<Samples> samples_;
  int gpus_ = 0;
  std::thread thread_;
};

}  // namespace trireme::device
