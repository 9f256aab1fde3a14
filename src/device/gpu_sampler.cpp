#include "device/gpu_sampler.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <fstream>
#include <limits>
#include <mutex>
#include <utility>

#include "core/clock.hpp"
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

namespace {

constexpr std::chrono::seconds kInterval{1};  // the driver's own figures change no faster
constexpr int kSamplesPerLine = 10;
constexpr std::chrono::seconds kSampleTimeout{
    2};  // for a sample under way, which takes milliseconds
constexpr double kUntold = std::numeric_limits<double>::quiet_NaN();

/// "97 %", or "-" for what is not told.
std::string with_unit(double value, int digits, const char* unit) {
  return std::isnan(value) ? "-" : fmt::format("{:.{}f} {}", value, digits, unit);
}

}  // namespace

void GpuMeans::Mean::add(double value) {
  if (std::isnan(value)) return;
  sum += value;
  ++count;
}

double GpuMeans::Mean::value() const { return count > 0 ? sum / count : kUntold; }

void GpuMeans::add(const std::vector<GpuReading>& readings) {
  if (totals_.empty())
    for (const GpuReading& reading : readings) totals_.push_back({.highest = reading});
  for (std::size_t i = 0; i < readings.size(); ++i) {
    GpuReading& highest = totals_[i].highest;
    highest.memory = std::fmax(highest.memory, readings[i].memory);
    highest.temperature = std::fmax(highest.temperature, readings[i].temperature);
    totals_[i].utilisation.add(readings[i].utilisation);
    totals_[i].power.add(readings[i].power);
  }
}

std::vector<GpuReading> GpuMeans::take() {
  if (totals_.empty()) return taken_;
  taken_.clear();
  for (Total& total : totals_) {
    total.highest.utilisation = total.utilisation.value();
    total.highest.power = total.power.value();
    taken_.push_back(total.highest);
  }
  totals_.clear();
  return taken_;
}

std::string reading_line(const GpuReading& reading, double time) {
  constexpr double kMiB = 1024.0 * 1024.0;
  return fmt::format("{} GPU {}: {}, {} of {}, {}, {}", local_date_time(time), reading.index,
                     with_unit(reading.utilisation, 0, "%"),
                     with_unit(reading.memory / kMiB, 0, "MiB"),
                     with_unit(reading.memory_total / kMiB, 0, "MiB"),
                     with_unit(reading.temperature, 0, "C"), with_unit(reading.power, 1, "W"));
}

struct GpuSampler::Samples {
  Nvml nvml;
  std::filesystem::path log;
  GpuMeans for_log = {};  ///< the thread's own
  std::mutex mutex = {};  ///< of the next four
  std::condition_variable changed = {};
  bool stop = false, ended = false;
  GpuMeans for_caller = {};

  /// Samples until `stop`.
  void run() {
    for (int samples = 0;; ++samples) {
      if (samples % kSamplesPerLine == 0) write_log();
      {
        std::unique_lock lock(mutex);
        if (changed.wait_for(lock, kInterval, [this] { return stop; })) return;
      }
      // The run waits neither for the driver nor for the file.
      const std::vector<GpuReading> readings = nvml.read();
      for_log.add(readings);
      const std::lock_guard lock(mutex);
      for_caller.add(readings);
    }
  }

  void write_log() {
    std::ofstream file(log, std::ios::app);
    for (const GpuReading& reading : for_log.take())
      file << reading_line(reading, unix_time()) << '\n';
  }
};

GpuSampler::GpuSampler(Nvml nvml, const std::filesystem::path& log)
    : samples_(new Samples{.nvml = std::move(nvml), .log = log}) {
  const std::vector<GpuReading> first = samples_->nvml.read();
  gpus_ = static_cast<int>(first.size());
  samples_->for_caller.add(first);
  samples_->for_log.add(first);
  thread_ = std::thread([samples = samples_] {
    samples->run();
    const std::lock_guard lock(samples->mutex);
    samples->ended = true;
    samples->changed.notify_one();
  });
}

GpuSampler::~GpuSampler() {
  std::unique_lock lock(samples_->mutex);
  samples_->stop = true;
  samples_->changed.notify_one();
  // With a lost GPU the driver may hang: the run ends all the same, and says why.
  if (samples_->changed.wait_for(lock, kSampleTimeout, [this] { return samples_->ended; })) {
    lock.unlock();
    thread_.join();
  } else {
    thread_.detach();
  }
}

std::vector<GpuReading> GpuSampler::take() {
  const std::lock_guard lock(samples_->mutex);
  return samples_->for_caller.take();
}

}  // namespace trireme::device
