#include "train/gpu_watch.hpp"

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "core/clock.hpp"
#include "core/system/identity.hpp"
#include "device/backend.hpp"
#include "train/rank_output.hpp"

namespace trireme::train {
namespace {

/// The figures of a GPU as they travel; an index below zero stands for no GPU.
constexpr int kFigures = 6;

void pack(const device::GpuReading& reading, double* figures) {
  const double values[kFigures] = {static_cast<double>(reading.index),
                                   reading.utilisation,
                                   reading.memory,
                                   reading.memory_total,
                                   reading.temperature,
                                   reading.power};
  std::copy(std::begin(values), std::end(values), figures);
}

report::GpuUse unpack(const std::string& host, const double* figures) {
  return {.host = host,
          .index = static_cast<int>(figures[0]),
          .utilisation = figures[1],
          .memory = figures[2],
          .memory_total = figures[3],
          .temperature = figures[4],
          .power = figures[5]};
}

}  // namespace

GpuWatch::GpuWatch(const deck::Deck& deck, comm::MpiCommunicator& world) {
  const auto node = world.split_by_node();
  std::vector<std::string> bus_ids;
  if (deck.run.device == deck::Device::cuda)  // as make_devices gives each rank its GPU
    bus_ids = node->all_gather_text(device::visible_gpus().at(node->rank()).bus_id);
  leaders_ = world.split(node->rank() == 0 ? 0 : -1, world.rank(), "first ranks of nodes");
  if (!leaders_) return;
  start(deck, bus_ids);
  hosts_ = leaders_->all_gather_text(host_name());
  const int gpus = sampler_ ? sampler_->gpus() : 0;
  most_gpus_ = static_cast<int>(leaders_->all_reduce(gpus, comm::Reduce::max));
}

void GpuWatch::start(const deck::Deck& deck, const std::vector<std::string>& bus_ids) {
  const std::filesystem::path log = rank_file(deck.run.output, ".gpu");
  try {
    sampler_ = std::make_unique<device::GpuSampler>(device::Nvml(bus_ids), log);
  } catch (const Error& error) {
    std::ofstream(log, std::ios::app)
        << local_date_time(unix_time()) << " no GPU is watched: " << error.what() << '\n';
    if (!deck.log.gpu_every) return;
    std::fputs(fmt::format("warning: {}: no GPU is watched (log.gpu_every): {}\n",
                           process_identity(), error.what())
                   .c_str(),
               stderr);
  }
}

report::GpuEvent GpuWatch::gather() {
  report::GpuEvent event;
  if (!leaders_ || most_gpus_ == 0) return event;
  const int per_node = most_gpus_ * kFigures;
  std::vector<double> all(leaders_->size() * per_node, -1.0);
  double* mine = all.data() + leaders_->rank() * per_node;
  if (sampler_)
    for (const device::GpuReading& reading : sampler_->take()) {
      pack(reading, mine);
      mine += kFigures;
    }
  leaders_->all_gather(all.data(), per_node, DType::f64);
  for (std::size_t gpu = 0; gpu < all.size(); gpu += kFigures)
    if (all[gpu] >= 0.0) event.gpus.push_back(unpack(hosts_[gpu / per_node], all.data() + gpu));
  return event;
}

}  // namespace trireme::train
