// MPI: initialization, communicators for host memory, and checks of the launcher; and the groups of
// a layout.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/watchdog.hpp"
#include "core/error.hpp"
#include "grid/layout.hpp"

namespace trireme::comm {

/// Throws InternalError with MPI's own text, the expression, rank and host unless `code` is
/// MPI_SUCCESS.
void check_mpi(int code, const char* expression, const char* file, int line);
#define TRIREME_MPI(call) ::trireme::comm::check_mpi((call), #call, __FILE__, __LINE__)

// ---- long buffers travel in chunks: MPI counts are ints, and reductions need memory

/// Maximum elements of one MPI call, whose counts are ints: a quarter of INT_MAX, because
/// collective algorithms multiply counts by small numbers.
inline constexpr std::size_t kMaxCount = std::size_t{1} << 29;

/// Maximum elements of one reduction. Open MPI's algorithms take temporary memory of half to twice
/// the length of the call, here up to 8 MiB, and chunks of 4 MiB stay in the caches: 2 to 8 ranks
/// on one host reduced 64 MiB in half the time of one call. Chunks of 1 MiB would make Open MPI 4.1
/// choose other algorithms, which sum in another order.
inline constexpr std::size_t kMaxReduction = std::size_t{1} << 20;

/// Calls `function(offset, count)` for consecutive chunks that cover [0, total): as few as `limit`
/// elements each allow, of equal counts up to one element, so that no chunk is much shorter than
/// the others and reduced by another algorithm.
template <typename Function>
void for_each_chunk(std::size_t total, std::size_t limit, Function&& function) {
  const std::size_t chunks = (total + limit - 1) / limit;
  for (std::size_t i = 0, begin = 0; i < chunks; ++i) {
    const std::size_t end = begin + (total - begin + (chunks - i - 1)) / (chunks - i);
    function(begin, static_cast<int>(end - begin));
    begin = end;
  }
}

// ---- communicators

/// Initialises MPI for the life of the program and makes its errors exceptions. Made once, in
/// main().
class MpiEnvironment {
 public:
  /// Throws InternalError when the library has no full support of threads.
  MpiEnvironment();
  /// Finalises MPI, except during an exception, which other ranks may not have.
  ~MpiEnvironment();
  MpiEnvironment(const MpiEnvironment&) = delete;
  MpiEnvironment& operator=(const MpiEnvironment&) = delete;
};

class StallDiagnostics;

/// The collective time-out (comm.timeout); none without a watchdog.
struct CollectiveTimeout {
  std::shared_ptr<Watchdog> watchdog;
  Watched::Clock::duration limit{};
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

  /// Sets the collective time-out of this group and of groups that are split off later: a call that
  /// waits longer ends the job and names the ranks that do not answer. For the world; collective.
  void set_timeout(double seconds);
  /// Applies the time-out to a call of another library that waits for this group's ranks, while the
  /// result lives. `what` is for the message.
  std::unique_ptr<WatchedCall> watch(std::string_view what) const;
  /// Watches local work that the other ranks wait for while the result lives: no rank times out
  /// while it progresses. `what` is for the message. In a group of one rank nothing is watched.
  /// `minimum` seconds without progress are allowed whatever the time-out is.
  WatchedWork work(std::string what, double minimum = 0.0,
                   ProgressBy progress = ProgressBy::notes) const;

  const std::string& name() const override { return name_; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  /// 16-bit types accumulate in fp32 and are rounded once, here and in reduce_scatter.
  void all_reduce(void* data, std::size_t count, DType dtype, Reduce op) override;
  void reduce_scatter(void* data, std::size_t count, DType dtype) override;
  void all_gather(void* data, std::size_t count, DType dtype) override;
  void broadcast(void* data, std::size_t bytes, int root) override;
  std::unique_ptr<Request> send(const void* data, std::size_t bytes, int peer, int tag) override;
  std::unique_ptr<Request> receive(void* data, std::size_t bytes, int peer, int tag) override;
  void barrier() override;

  /// The group's ranks, as numbers of the world.
  const std::shared_ptr<const Ranks>& ranks() const { return timeout_.ranks; }
  /// The MPI handle, for libraries that use MPI.
  MPI_Comm handle() const { return handle_; }
  /// Sums 64-bit integers modulo 2^64, in place. Collective.
  void all_reduce_sum(std::uint64_t* data, std::size_t count);
  /// The texts of all ranks, in rank order, on every rank. Collective.
  std::vector<std::string> all_gather_text(const std::string& text);

 private:
  /// `count` elements as MPI can combine them: `data` itself, or widened_ for 16-bit types.
  void* widen(void* data, int count, DType dtype);

  MPI_Comm handle_;
  std::string name_;
  int rank_ = 0;
  int size_ = 1;
  CollectiveTimeout timeout_;
  std::unique_ptr<StallDiagnostics> diagnostics_;  ///< of the world, once it has a time-out
  std::vector<float> widened_;                     ///< a chunk of a 16-bit reduction, in fp32
};

/// Ends all ranks with `code` immediately (MPI_Abort); only this process when MPI is not running or
/// MPI_Abort does not return within seconds.
[[noreturn]] void abort_all(int code);

/// The ranks were started in a wrong way (exit 1).
class LauncherError : public Error {
 public:
  explicit LauncherError(const std::string& message) : Error(ExitCode::failure, message) {}
};

/// The number of ranks that the launcher started and that MPI will see; 1 without a launcher.
/// Before MPI starts.
long launched_ranks();
/// Whether MPI has started in this process.
bool mpi_has_started();
/// Keeps Open MPI from starting its daemon (orted) for a process without a launcher: the daemon
/// costs time and may outlive the program; from making session folders, which others delete; and
/// from loading libraries of networks. Does not override what the environment says of these
/// (OMPI_MCA_ess_singleton_isolated, orte_create_session_dirs, pml). Before MPI starts.
void isolate_singleton();

/// Throws LauncherError naming the fix when srun started several ranks without PMIx (--mpi=none),
/// with which Open MPI fails to start with a misleading message. Before MPI starts.
void check_process_manager();

/// Throws LauncherError naming the fix when the launcher (Slurm, Open MPI, PMI) started more ranks
/// than MPI sees: every rank would train alone. `size` is the size of MPI_COMM_WORLD.
void check_launcher(int size);

/// The number of ranks of `world` on this host that have this rank's CPU affinity mask, this rank
/// included. Collective.
int ranks_sharing_cores(MpiCommunicator& world);

/// This rank's number among the ranks of `world` on its node (that share memory with it), in
/// `world`'s order, and how many there are. Collective.
int node_local_rank(const MpiCommunicator& world);
int node_local_size(const MpiCommunicator& world);

/// Seconds that the calling thread has spent in communicators' MPI calls: waiting for other ranks,
/// and transferring data. NCCL's operations on GPU streams do not count.
double seconds_in_mpi();

// ---- the communicators of a layout, one per axis; and agree(), by which a failure of one rank
// throws on all

/// This rank's coordinates and its groups. `world` transfers host memory; the others transfer
/// tensors in the backend's memory.
struct Groups {
  grid::Layout layout;
  grid::Coordinates place;
  std::unique_ptr<MpiCommunicator> world;
  std::unique_ptr<Communicator> tensor;  ///< same data and pipeline coordinate
  std::unique_ptr<Communicator> data;    ///< same tensor and pipeline coordinate
  /// Same tensor and data coordinate; rank r is stage r.
  std::unique_ptr<Communicator> pipeline;
  /// First and last stage; null elsewhere, and where they are one.
  std::unique_ptr<Communicator> embedding;

  bool is_first_stage() const { return layout.is_first(place.pipeline); }
  bool is_last_stage() const { return layout.is_last(place.pipeline); }
};

/// The axis of a layout that a group of ranks lies on; `embedding` is the ends of the pipeline's.
enum class Axis { tensor, data, pipeline, embedding };
std::string_view name_of(Axis axis);

/// Makes a communicator for a backend's memory from one of the same ranks for host memory.
/// Collective over its ranks.
using Connect =
    std::function<std::unique_ptr<Communicator>(Axis, std::unique_ptr<MpiCommunicator>)>;

/// Splits `world`, which must have layout.ranks() ranks, and passes each group to `connect` if
/// there is one. Collective over the world.
Groups make_groups(std::unique_ptr<MpiCommunicator> world, const grid::Layout& layout,
                   const Connect& connect = {});

/// Runs `step` on every rank. If it throws on any rank, all ranks throw the error of the lowest
/// one, as the class of its exit code (DataError, IoError, DeckError, UsageError, InternalError, or
/// Error with that code). `step` must not wait for other ranks. Collective.
void agree(MpiCommunicator& ranks, const std::function<void()>& step);

// The clocks of a group's ranks.

/// The offset from this rank's clock to the first rank's, and the bound of its error.
struct ClockOffset {
  double ms = 0, error_ms = 0;
};

/// Compares `clock_ms`, a clock in milliseconds that never jumps, with the first rank's as the
/// Network Time Protocol does: of several questions to that rank counts the one with the quickest
/// answer, and half its round trip bounds the error. Collective over `group`; the first rank
/// answers the others in turn.
ClockOffset clock_offset(MpiCommunicator& group, const std::function<double()>& clock_ms);

}  // namespace trireme::comm
