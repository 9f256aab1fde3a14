#include <cuda_runtime_api.h>

#include "device/backend.hpp"

namespace trireme::device {

std::vector<Gpu> visible_gpus() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) return {};
  std::vector<Gpu> gpus;
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, index) != cudaSuccess) return {};
    char bus_id[32] = {};
    if (cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, index) != cudaSuccess) return {};
    gpus.push_back({.name = properties.name,
                    .capability = 10 * properties.major + properties.minor,
                    .memory_bytes = properties.totalGlobalMem,
                    .bus_id = bus_id});
  }
  return gpus;
}

std::string why_no_gpu() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess && count == 0) return "CUDA sees no GPU";
  // Of no driver at all CUDA says that it is too old.
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0)
    return "this machine has no NVIDIA driver";
  return fmt::format("CUDA says: {}", cudaGetErrorString(code));
}

}  // namespace trireme::device
