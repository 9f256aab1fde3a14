// What the driver tells of this node's GPUs, whether this program uses them or not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/system/shared_library.hpp"

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

}  // namespace trireme::device
