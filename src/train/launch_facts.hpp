// What ranks find when they start, and what is wrong with it. Pure: launch_checks.hpp gathers the
// facts. Each complaint is about one rank, whose name and host stand before it: "" when all is
// well, else what is wrong and how to mend it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme::train {

/// The program that a rank runs.
struct ProgramFacts {
  std::string host;
  std::string path;
  std::string build;  ///< build_id()
};

/// Complains when `mine` is another build than `first`, which rank 0 runs.
std::string build_complaint(const ProgramFacts& first, const ProgramFacts& mine);

/// The deck that a rank was started with.
struct DeckFacts {
  std::string path;
  std::optional<std::string> text;  ///< of the file; unset where it cannot be read
  std::string overrides;            ///< a line for each
};

/// Complains when `mine` differs from `first`, rank 0's, whose deck all use. A rank that cannot
/// read the file does not need it.
std::string deck_complaint(const DeckFacts& first, const DeckFacts& mine);

/// The GPUs of a rank.
struct GpuFacts {
  int local_rank = 0;              ///< the rank's number on its node
  int local_ranks = 1;             ///< ranks on this node
  std::vector<std::string> names;  ///< of the GPUs that the rank sees
  std::string why_none;            ///< why it sees none
  /// CUDA_VISIBLE_DEVICES; unset where the environment has none.
  std::optional<std::string> visible;

  /// The name of the one it takes: that of its number on the node; "" when there is none.
  std::string taken() const;
};

/// Complains when there is no GPU for the rank.
std::string gpu_complaint(const GpuFacts& mine);

/// Complains when a rank takes a GPU of another kind than rank 0, which takes a `first`.
std::string gpu_kind_complaint(const std::string& first, const std::string& mine);

/// What decides whether NCCL talks to other nodes over InfiniBand.
struct NetworkFacts {
  std::vector<std::string> active_ports;  ///< of InfiniBand: "mlx5_0 port 1"
  bool has_verbs = false;                 ///< libibverbs can be loaded
  bool has_devices = false;               ///< /dev/infiniband/uverbs* can be opened
  std::optional<std::string> ib_disable;  ///< NCCL_IB_DISABLE
  std::optional<std::string> net;         ///< NCCL_NET, with which a person chooses
};

/// Reads the ports from `ports`, /sys/class/infiniband, and the devices from `devices`,
/// /dev/infiniband; tries the library and reads the environment.
NetworkFacts read_network_facts(const std::filesystem::path& ports,
                                const std::filesystem::path& devices);

/// Complains when NCCL has to fall back to TCP sockets although a port is active, unless NCCL_NET
/// says which network is wanted.
std::string network_complaint(const NetworkFacts& mine);

}  // namespace trireme::train
