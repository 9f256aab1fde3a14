// How the GPUs of all nodes are used while a run trains.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "comm/mpi/mpi_communicator.hpp"
#include "deck/deck.hpp"
#include "device/gpu_sampler.hpp"
#include "report/metrics.hpp"

namespace trireme::train {

/// Samples the GPUs that the run uses, on the first rank of each node, into <run>/ranks/<host>.gpu.
/// A run on the host samples every GPU of its nodes.
class GpuWatch {
 public:
  /// A node without NVIDIA's library says so once, in its file and, with log.gpu_every, on standard
  /// error. The folder must exist. Collective over `world`.
  GpuWatch(const deck::Deck& deck, comm::MpiCommunicator& world);

  /// What the GPUs of all nodes did since the last call, on rank 0; the iteration is left to the
  /// caller. Collective over the world, though only the first rank of each node exchanges anything.
  report::GpuEvent gather();

 private:
  void start(const deck::Deck& deck, const std::vector<std::string>& bus_ids);

  std::unique_ptr<device::GpuSampler> sampler_;  ///< null where there is no library
  std::unique_ptr<comm::MpiCommunicator>
      leaders_;                     ///< the first ranks of the nodes; null elsewhere
  std::vector<std::string> hosts_;  ///< of `leaders_`
  int most_gpus_ = 0;               ///< on a node
};

}  // namespace trireme::train
