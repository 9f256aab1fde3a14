// MPI: start-up, communicators over host memory, and what the launcher gave.
#pragma once

#include <mpi.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/watchdog.hpp"
#include "core/error.hpp"

namespace trireme::comm {

/// Throws InternalError with MPI's own text, the expression, rank and host unless `code` is
/// MPI_SUCCESS.
void check_mpi(int code, const char* expression, const char* file, int line);
#define TRIREME_MPI(call) ::trireme::comm::check_mpi((call), #call, __FILE__, __LINE__)

/// Initialises MPI for the life of the program and makes its errors exceptions. Made once, in
/// main().
class MpiEnvironment {
 public:
  /// Throws InternalError when the library has no full support of threads.
  MpiEnvironment();
  /// Finalises MPI, unless an exception is on its way: other ranks need not have seen it.
  ~MpiEnvironment();
  MpiEnvironment(const MpiEnvironment&) = delete;
  MpiEnvironment& operator=(const MpiEnvironment&) = delete;
};

class RollCall;

/// How long calls may wait for other ranks: without a watchdog, for ever.
struct Patience {
  std::shared_ptr<Watchdog> watchdog;
  Watched::Clock::duration timeout{};
  std::shared_ptr<const Ranks> ranks;  ///< of the group

  /// Watches `call` while the result lives.
  std::unique_ptr<WatchedCall> watch(std::string_view call, const std::string& group,
                                     int rank) const;
};

/// A communicator over host memory. Owns its MPI_Comm unless it is MPI_COMM_WORLD.
class MpiCommunicator final : public Communicator {
 public:
  using Communicator::all_reduce;

  /// Takes over `handle`; `name` appears in messages.
  MpiCommunicator(MPI_Comm handle, std::string name);
  ~MpiCommunicator() override;

  /// MPI_COMM_WORLD.
  static std::unique_ptr<MpiCommunicator> world();
  /// The ranks that pass the same `color`, ordered by `key`; null where color is negative.
  /// Collective over this group.
  std::unique_ptr<MpiCommunicator> split(int color, int key, std::string name) const;
  /// The ranks that share memory with this one, in this group's order. Collective over this group.
  std::unique_ptr<MpiCommunicator> split_by_node() const;

  /// From now on a call that waits longer than this for the other ranks, here and in groups that
  /// are split off later, ends the job and names the ranks that do not answer. For the world;
  /// collective.
  void set_timeout(double seconds);
  /// Holds a call of another library, which waits for this group's ranks, to the same time while
  /// the result lives. `what` is for the message.
  std::unique_ptr<WatchedCall> watch(std::string_view what) const;
  /// Watches work of this rank that the others wait for while the result lives: they wait as long
  /// as it progresses. `what` is for the message. In a group of one rank nothing is watched.
  WatchedWork work(std::string what) const;

  const std::string& name() const override { return name_; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  /// Half types are combined in fp32 and rounded once, here and in reduce_scatter.
  void all_reduce(void* data, std::size_t count, DType dtype, Reduce op) override;
  void reduce_scatter(void* data, std::size_t count, DType dtype) override;
  void all_gather(void* data, std::size_t count, DType dtype) override;
  void broadcast(void* data, std::size_t bytes, int root) override;
  std::unique_ptr<Request> send(const void* data, std::size_t bytes, int peer, int tag) override;
  std::unique_ptr<Request> receive(void* data, std::size_t bytes, int peer, int tag) override;
  void barrier() override;

  /// The group's ranks, as numbers of the world.
  const std::shared_ptr<const Ranks>& ranks() const { return patience_.ranks; }
  /// The MPI handle, for libraries that speak MPI (HDF5).
  MPI_Comm handle() const { return handle_; }
  /// Sums 64-bit integers modulo 2^64, in place. Collective.
  void all_reduce_sum(std::uint64_t* data, std::size_t count);
  /// The texts of all ranks, in rank order, on every rank. Collective.
  std::vector<std::string> all_gather_text(const std::string& text);

 private:
  MPI_Comm handle_;
  std::string name_;
  int rank_ = 0;
  int size_ = 1;
  Patience patience_;
  std::unique_ptr<RollCall> roll_call_;  ///< of the world, once there is a timeout
  std::vector<float> widened_;           ///< working memory of reductions of half types
};

/// Ends all ranks with `code` at once (MPI_Abort), or just this process when MPI is not running, or
/// cannot do it within seconds.
[[noreturn]] void abort_all(int code);

/// What is wrong with the way in which ranks were started (exit 1).
class LauncherError : public Error {
 public:
  explicit LauncherError(const std::string& message) : Error(ExitCode::failure, message) {}
};

/// The ranks that a launcher started together with this one and that MPI will see; 1 where there is
/// none. Before MPI starts.
long launched_ranks();
/// Whether MPI has started in this process.
bool mpi_has_started();
/// Keeps Open MPI from starting its daemon (orted) for a process that no launcher started, and
/// which starts no others: such a daemon costs time and may outlive the program. A value of
/// OMPI_MCA_ess_singleton_isolated in the environment stays. Before MPI starts.
void isolate_singleton();

/// Throws LauncherError naming the fix when srun started several ranks without telling them of each
/// other (--mpi=none): Open MPI could not start, and blames how it was built. Before MPI starts.
void check_process_manager();

/// Throws LauncherError naming the fix when the launcher (Slurm, Open MPI, PMI) promised more ranks
/// than MPI sees: every rank would train alone. `size` is the size of MPI_COMM_WORLD.
void check_launcher(int size);

/// The number of ranks of `world` on this host that have this rank's CPU affinity mask, this rank
/// included. Collective.
int ranks_sharing_cores(MpiCommunicator& world);

/// This rank's number among the ranks of `world` on its node (that share memory with it), in
/// `world`'s order, and how many there are. Collective.
int node_local_rank(const MpiCommunicator& world);
int node_local_size(const MpiCommunicator& world);

}  // namespace trireme::comm
