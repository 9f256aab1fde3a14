// What ranks find when they start: what is wrong with it, and the command that starts them again.
// Pure: startup.hpp gathers what all ranks find. Each problem is that of one rank, whose name
// and host stand before it: "" when all is well, else what is wrong and how to mend it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "deck/choices.hpp"

namespace trireme::train {
/// The program that a rank runs.
struct ProgramInfo {
  std::string host;
  std::string path;
  std::string build;  ///< build_id()
};

/// Complains when `mine` is another build than `first`, which rank 0 runs.
std::string build_problem(const ProgramInfo& first, const ProgramInfo& mine);

/// The deck that a rank was started with.
struct DeckInfo {
  std::string path;
  std::optional<std::string> text;  ///< of the file; unset where it cannot be read
  std::string overrides;            ///< a line for each
};

/// Complains when `mine` differs from `first`, rank 0's, whose deck all use. A rank that cannot
/// read the file does not need it.
std::string deck_problem(const DeckInfo& first, const DeckInfo& mine);

/// The GPUs of a rank.
struct GpuInfo {
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
std::string gpu_problem(const GpuInfo& mine);

/// Complains when a rank takes a GPU of another kind than rank 0, which takes a `first`.
std::string gpu_kind_problem(const std::string& first, const std::string& mine);

/// Complains when a GPU of this name and compute capability (10 * major + minor) has no tensor
/// cores for FP8, which precision.gemm = fp8 needs, or no GEMMs with a scale for each block.
std::string fp8_problem(const std::string& gpu, int capability, deck::Fp8Recipe recipe);

/// What decides whether NCCL talks to other nodes over InfiniBand.
struct NetworkInfo {
  std::vector<std::string> active_ports;  ///< of InfiniBand: "mlx5_0 port 1"
  bool has_verbs = false;                 ///< libibverbs can be loaded
  bool has_devices = false;               ///< /dev/infiniband/uverbs* can be opened
  std::optional<std::string> ib_disable;  ///< NCCL_IB_DISABLE
  std::optional<std::string> net;         ///< NCCL_NET, with which a person chooses
};

/// Reads the ports from `ports`, /sys/class/infiniband, and the devices from `devices`,
/// /dev/infiniband; tries the library and reads the environment.
NetworkInfo read_network_info(const std::filesystem::path& ports,
                              const std::filesystem::path& devices);

/// Complains when NCCL has to fall back to TCP sockets although a port is active, unless NCCL_NET
/// says which network is wanted.
std::string network_problem(const NetworkInfo& mine);

/// What tells how the ranks were started.
struct LaunchInfo {
  /// The command line of the process that started this rank, mpirun's where it is on this host.
  std::vector<std::string> parent;
  bool by_srun = false;                      ///< else by mpirun, where there are several ranks
  bool root = false;                         ///< mpirun refuses root unless it is told
  bool oversubscribes = false;               ///< mpirun may start more ranks than it has slots for
  std::optional<std::string> binding;        ///< mpirun --bind-to
  std::optional<std::string> mapping;        ///< mpirun --map-by
  std::optional<std::string> container;      ///< TRIREME_CONTAINER: srun's options, quoted
  std::optional<std::string> cpus_per_task;  ///< of srun, which forgets the job's
  std::optional<std::string> gpu_bind;       ///< of srun
};

/// Reads /proc and the environment.
LaunchInfo read_launch_info();

/// The launcher and its options, as words of a shell: "mpirun -n 4 --oversubscribe", "srun
/// --mpi=pmix -n 4", or "" for one rank that no launcher needs to start. `command` is the rank's
/// own command line, the program first.
///
/// Of an mpirun on this host they are the words that were typed, further hosts and parameters
/// included, else what mpirun leaves in the environment of its ranks. An mpirun of several
/// application contexts, `a : b`, is one of those that only the environment tells of.
std::string launch_words(const LaunchInfo& info, int ranks,
                         const std::vector<std::string>& command);

}  // namespace trireme::train
