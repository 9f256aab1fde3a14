// Starting a run again when it ends early (trireme-pretrain --supervise).
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/system/launcher.hpp"

namespace trireme::train {

/// What supervise() starts.
struct SupervisedRun {
  std::vector<std::string> command;  ///< the launcher's words, the program and its arguments
  std::vector<std::string> again;    ///< the same without --restart, for later starts
  std::filesystem::path folder;      ///< the run folder
  int max_restarts = 0;
  std::chrono::seconds launcher_timeout = LauncherWatch::kTimeout;  ///< after its ranks
};

/// The words of a command line that start the run that --supervise supervises: without the options
/// of --supervise, and with --restart only if `with_restart`.
std::vector<std::string> supervised_words(int argc, char** argv, bool with_restart);

/// The words of a launcher without `hosts`: srun gets --exclude, and the host file of Open MPI's
/// mpirun is copied without them to `folder`. Empty where the launcher names no hosts that others
/// could replace.
std::vector<std::string> without_hosts(const std::vector<std::string>& words,
                                       const std::vector<std::string>& hosts,
                                       const std::filesystem::path& folder);

/// The host on which a rank was lost, if `line` of a launcher (Open MPI's mpirun, srun) says so;
/// otherwise "".
std::string host_that_lost_a_rank(const std::string& line);

/// Whether a launcher's hosts without `hosts` are as many as it asks for: the slots of mpirun's
/// host file for its -n, the nodes of Slurm's allocation for srun's -N. Throws IoError.
bool has_spares(const std::vector<std::string>& words, const std::vector<std::string>& hosts);

/// Runs the command, and starts it again when it ends with 75 or is ended by a signal, as the run
/// of a lost rank is, or with 77 where the host with wrong results can be left out; without a host
/// that lost a rank in two starts where there are spare ones: after 1 second, then twice as long
/// each time, 60 seconds at most, from the beginning once it has progressed. Does not start it
/// again when the deck's or the command's limit of time stopped it, when it failed in the same way
/// at the same iteration twice, after `max_restarts`, or when this process was asked to stop: then
/// it asks the run to stop (SIGUSR1) and waits for it. Kills an mpirun that hangs after its ranks
/// have ended. Says on standard error what it does, and at the end the run's goodput. Returns the
/// run's last exit code; 1 instead of 75 where another start would not help. Throws IoError.
ExitCode supervise(const SupervisedRun& run);

}  // namespace trireme::train
