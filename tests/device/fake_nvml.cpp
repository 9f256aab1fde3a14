// A stand-in for NVIDIA's management library: two GPUs, of which the second tells little. The file
// that FAKE_NVML names, if any, holds the first one's utilisation.
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kOk = 0, kNotSupported = 3, kNotFound = 6;
int gpus[2];

bool is_first(const void* gpu) { return gpu == &gpus[0]; }

}  // namespace

extern "C" {

int nvmlInit_v2() { return kOk; }
const char* nvmlErrorString(int status) { return status == kNotFound ? "Not Found" : "Unknown"; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return kOk;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** gpu) {
  *gpu = &gpus[index];
  return kOk;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** gpu) {
  if (std::strcmp(id, "0000:3B:00.0") != 0) return kNotFound;
  *gpu = &gpus[1];
  return kOk;
}
int nvmlDeviceGetIndex(void* gpu, unsigned* index) {
  *index = is_first(gpu) ? 0 : 1;
  return kOk;
}
int nvmlDeviceGetUtilizationRates(void* gpu, unsigned* rates) {
  if (!is_first(gpu)) return kNotSupported;
  rates[0] = 97;
  rates[1] = 3;
  const char* path = std::getenv("FAKE_NVML");
  if (std::FILE* file = path ? std::fopen(path, "r") : nullptr) {
    if (std::fscanf(file, "%u", &rates[0]) != 1) rates[0] = 0;
    std::fclose(file);
  }
  return kOk;
}
int nvmlDeviceGetMemoryInfo(void*, unsigned long long* memory) {
  memory[0] = 80ull << 30;
  memory[1] = 19ull << 30;
  memory[2] = 61ull << 30;
  return kOk;
}
int nvmlDeviceGetTemperature(void*, int sensor, unsigned* celsius) {
  *celsius = 65;
  return sensor == 0 ? kOk : kNotSupported;
}
int nvmlDeviceGetPowerUsage(void* gpu, unsigned* milliwatts) {
  *milliwatts = 612300;
  return is_first(gpu) ? kOk : kNotSupported;
}
}
