#include "device/nvml.hpp"

#include <limits>

#include "core/error.hpp"

namespace trireme::device {
namespace {

constexpr int kSensorOfGpu = 0;  // NVML_TEMPERATURE_GPU

}  // namespace

Nvml::Nvml(const std::vector<std::string>& bus_ids)
    : library_({"libnvidia-ml.so.1"}, "it comes with NVIDIA's driver"),
      error_string_(library_.function<const char*(Status)>("nvmlErrorString")),
      get_index_(library_.function<Status(Gpu, unsigned*)>("nvmlDeviceGetIndex")),
      get_utilisation_(
          library_.function<Status(Gpu, Utilisation*)>("nvmlDeviceGetUtilizationRates")),
      get_memory_(library_.function<Status(Gpu, Memory*)>("nvmlDeviceGetMemoryInfo")),
      get_temperature_(library_.function<Status(Gpu, int, unsigned*)>("nvmlDeviceGetTemperature")),
      get_power_(library_.function<Status(Gpu, unsigned*)>("nvmlDeviceGetPowerUsage")) {
  check(library_.function<Status()>("nvmlInit_v2")(), "nvmlInit");
  if (bus_ids.empty()) {
    unsigned count = 0;
    check(library_.function<Status(unsigned*)>("nvmlDeviceGetCount_v2")(&count),
          "nvmlDeviceGetCount");
    auto* by_index = library_.function<Status(unsigned, Gpu*)>("nvmlDeviceGetHandleByIndex_v2");
    for (unsigned index = 0; index < count; ++index)
      check(by_index(index, &gpus_.emplace_back()), "nvmlDeviceGetHandleByIndex");
  }
  auto* by_bus_id =
      library_.function<Status(const char*, Gpu*)>("nvmlDeviceGetHandleByPciBusId_v2");
  for (const std::string& bus_id : bus_ids)
    check(by_bus_id(bus_id.c_str(), &gpus_.emplace_back()), "nvmlDeviceGetHandleByPciBusId");
}

void Nvml::check(Status status, const char* call) const {
  if (status != 0) throw CodedError<ExitCode::failure>("{}: {}", call, error_string_(status));
}

std::vector<GpuReading> Nvml::read() const {
  std::vector<GpuReading> readings;
  for (const Gpu gpu : gpus_) readings.push_back(read(gpu));
  return readings;
}

GpuReading Nvml::read(Gpu gpu) const {
  // A GPU may tell one figure and not another: parts of one (MIG) have no utilisation.
  constexpr double kUntold = std::numeric_limits<double>::quiet_NaN();
  GpuReading reading{.utilisation = kUntold,
                     .memory = kUntold,
                     .memory_total = kUntold,
                     .temperature = kUntold,
                     .power = kUntold};
  unsigned index = 0, celsius = 0, milliwatts = 0;
  Utilisation use{};
  Memory memory{};
  if (get_index_(gpu, &index) == 0) reading.index = static_cast<int>(index);
  if (get_utilisation_(gpu, &use) == 0) reading.utilisation = use.gpu;
  if (get_memory_(gpu, &memory) == 0) {
    reading.memory = static_cast<double>(memory.used);
    reading.memory_total = static_cast<double>(memory.total);
  }
  if (get_temperature_(gpu, kSensorOfGpu, &celsius) == 0) reading.temperature = celsius;
  if (get_power_(gpu, &milliwatts) == 0) reading.power = milliwatts / 1e3;
  return reading;
}

}  // namespace trireme::device
