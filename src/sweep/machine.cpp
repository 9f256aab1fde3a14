#include "sweep/machine.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "core/files.hpp"
#include "device/backend.hpp"

namespace trireme::sweep {
namespace {

/// The names of `count` visible GPUs: those of CUDA_VISIBLE_DEVICES, or their numbers.
std::vector<std::string> gpu_names(std::size_t count) {
  std::vector<std::string> names;
  if (const char* listed = std::getenv("CUDA_VISIBLE_DEVICES")) {
    const std::string text = listed;
    for (std::size_t begin = 0; begin <= text.size();) {
      const std::size_t end = std::min(text.find(',', begin), text.size());
      names.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  for (std::size_t i = names.size(); i < count; ++i) names.push_back(std::to_string(i));
  names.resize(count);
  return names;
}

int allowed_cores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  return sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : 1;
}

}  // namespace

Machine this_machine() {
  Machine machine{.cores = allowed_cores(),
                  .host_bytes = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
                                static_cast<std::size_t>(sysconf(_SC_PAGESIZE))};
  const std::vector<device::Gpu> gpus = device::visible_gpus();
  machine.gpus = gpu_names(gpus.size());
  for (const device::Gpu& gpu : gpus)
    machine.gpu_bytes =
        machine.gpu_bytes == 0 ? gpu.memory_bytes : std::min(machine.gpu_bytes, gpu.memory_bytes);
  return machine;
}

std::optional<std::string> why_unfit(const Machine& machine, const Need& need,
                                     std::optional<int> max_ranks) {
  const auto [ranks, bytes, on_gpus] = need;
  const auto size = [](std::size_t value) { return human_bytes(static_cast<double>(value)); };
  const int places = on_gpus ? static_cast<int>(machine.gpus.size()) : machine.cores;
  if (max_ranks && ranks > *max_ranks)
    return fmt::format("{} ranks, but --max-ranks {}", ranks, *max_ranks);
  if (!max_ranks && ranks > places)
    return fmt::format("{} rank{}, but {} {}{}", ranks, ranks == 1 ? "" : "s", places,
                       on_gpus ? "GPU" : "core", places == 1 ? "" : "s");
  if (on_gpus && !machine.gpus.empty() && bytes > machine.gpu_bytes)
    return fmt::format("{} a rank, but GPUs of {}", size(bytes), size(machine.gpu_bytes));
  if (!on_gpus && bytes * ranks > machine.host_bytes)
    return fmt::format("{} in all, but {} of memory", size(bytes * ranks),
                       size(machine.host_bytes));
  return std::nullopt;
}

std::optional<std::vector<std::string>> GpuPool::take(int count) {
  if (free_.size() < static_cast<std::size_t>(count)) return std::nullopt;
  const std::vector<std::string> taken(free_.begin(), free_.begin() + count);
  free_.erase(free_.begin(), free_.begin() + count);
  return taken;
}

void GpuPool::give_back(const std::vector<std::string>& gpus) {
  free_.insert(free_.end(), gpus.begin(), gpus.end());
}

}  // namespace trireme::sweep
