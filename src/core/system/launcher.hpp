// Launchers: the hosts that their words name, and an mpirun that still runs after its ranks have
// ended.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme {

/// Watches an mpirun that this process has started: Open MPI 4.1's may hang after an abort.
class LauncherWatch {
 public:
  using Clock = std::chrono::steady_clock;
  /// The time that mpirun gets to end after its ranks.
  static constexpr std::chrono::seconds kTimeout{60};

  explicit LauncherWatch(pid_t launcher, Clock::duration timeout = kTimeout)
      : launcher_(launcher), timeout_(timeout) {}

  /// Whether the launcher hangs: each check of the last `timeout` has found it idle. Checks once a
  /// second; must be called at least every ten seconds.
  ///
  /// An idle launcher:
  /// - all ranks of its job (OMPI_COMM_WORLD_SIZE) have been seen on this host: processes with
  ///   OMPI_COMM_WORLD_RANK that the launcher started, or an agent that it started;
  /// - at least one rank has ended, and each other one has ended or is stopped (SIGSTOP);
  /// - no other process that it started runs;
  /// - it is not stopped, and is not a rank of another job.
  /// A process that cannot be read in /proc counts as running.
  ///
  /// Never noticed: a launcher with ranks on other hosts, one that starts mpirun as a child (a
  /// script), one that is a rank of another job, one of whose ranks ended before a check saw it,
  /// and other launchers than Open MPI's. Wrongly noticed: an mpirun that, after its ranks, still
  /// waits for the reader of its output, or for a process that a rank left running.
  bool hangs();

  /// Checks now, and remembers the ranks that run.
  void check();

  /// Ends the launcher and the processes that it has started itself, by SIGKILL.
  void kill() const;

 private:
  /// Remembers the ranks under `process`. Whether any other process under it runs, or cannot be
  /// read. What a rank has started (`in_rank`) is not a rank.
  bool other_runs(pid_t process, bool in_rank);

  /// Whether a rank has ended, and each other one has ended or is stopped.
  bool ranks_have_ended() const;

  pid_t launcher_;
  Clock::duration timeout_;
  std::set<std::pair<pid_t, std::uint64_t>> ranks_;  ///< with the start time: PIDs are reused
  std::size_t world_size_ = 0;                       ///< 0: unknown
  Clock::time_point next_check_{};
  std::optional<Clock::time_point> idle_since_;
};

// ---- the words of launchers: srun and Open MPI's mpirun

/// Whether one of `hosts` is `host`; a name without a domain is that of any domain.
bool names_host(const std::vector<std::string>& hosts, std::string_view host);

/// The words of a launcher without `hosts`: srun gets --exclude, and the host file of Open MPI's
/// mpirun is copied without them to `folder`. Empty where the launcher names no hosts that others
/// could replace, or not all of these. Throws IoError.
std::vector<std::string> without_hosts(const std::vector<std::string>& words,
                                       const std::vector<std::string>& hosts,
                                       const std::filesystem::path& folder);

/// The host on which a rank was lost, if `line` of a launcher (Open MPI's mpirun, srun) says so;
/// otherwise "".
std::string host_that_lost_a_rank(const std::string& line);

/// Whether a launcher's hosts without `hosts` are as many as it asks for: the slots of mpirun's
/// host file for its -n, the nodes of Slurm's allocation for srun's -N. Throws IoError.
bool has_spares(const std::vector<std::string>& words, const std::vector<std::string>& hosts);

}  // namespace trireme
