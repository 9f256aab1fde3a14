// What programs that run under mpirun or srun share.
#pragma once

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>

#include "app.hpp"
#include "comm/mpi/mpi_communicator.hpp"
#include "core/system/process.hpp"
#include "deck_options.hpp"
#include "train/startup/startup.hpp"

namespace trireme {

/// Seconds that a rank waits for others before the deck says how long (comm.timeout).
constexpr double kStartTimeout = 600.0;

/// Explains the banner that mpirun prints when a rank ends with `code`. For the first rank, after
/// its own message.
inline void explain_launcher_banner(int code) {
  const bool quiet = std::getenv("OMPI_MCA_orte_execute_quiet") != nullptr;  // mpirun --quiet
  if (code == 0 || quiet || !std::getenv("OMPI_COMM_WORLD_RANK") || !prints_before_mpi()) return;
  std::fflush(stdout);
  std::fputs(
      fmt::format("(mpirun's lines below only repeat exit code {}; 'mpirun --quiet' leaves them "
                  "out)\n",
                  code)
          .c_str(),
      stderr);
}

/// Starts MPI and runs `body` with the world. An error that all ranks throw alike is printed once
/// and all return its code; any other takes the whole job down within seconds, with the rank and
/// host that had it. `info` are those of this rank, which calls this as well when it does not run.
inline ExitCode run_on_ranks(
    const char* program,
    const std::function<ExitCode(std::unique_ptr<comm::MpiCommunicator>)>& body,
    const train::StartInfo& info = {}) {
  comm::check_process_manager();
  const comm::MpiEnvironment environment;
  auto world = comm::MpiCommunicator::world();
  const int rank = world->rank();
  const int size = world->size();
  const auto fail = [&](ExitCode code, const char* message) {
    // Rank 0 speaks first: when all fail of one cause, it is said once. The launcher ends the
    // others meanwhile, with the signal that training catches.
    if (rank != 0) {
      std::signal(SIGTERM, SIG_DFL);
      std::this_thread::sleep_for(std::chrono::seconds(1));
    }
    const std::string where = size > 1 ? fmt::format("rank {} on {}: ", rank, host_name()) : "";
    std::fputs(fmt::format("{}: {}{}\n", program, where, message).c_str(), stderr);
    if (rank == 0) explain_launcher_banner(static_cast<int>(code));
    if (size == 1) std::_Exit(static_cast<int>(code));  // no other rank to stop, and no more to say
    comm::abort_all(static_cast<int>(code));
  };
  try {
    comm::check_launcher(size);
    train::check_same_build(*world);
    world->set_timeout(kStartTimeout);
    train::check_same_start(*world, info);
    return with_io_errors([&] { return body(std::move(world)); });
  } catch (const train::CollectiveError& error) {
    if (rank == 0) throw;
    return error.code();
  } catch (const Error& error) {
    fail(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    fail(ExitCode::failure, "out of memory");
  } catch (const std::exception& error) {
    fail(ExitCode::failure, error.what());
  }
  return ExitCode::failure;
}

/// Tells the other ranks, where there are any, that this one leaves before MPI has started: they
/// would wait for it. Returns `code`; where some do not leave, an error as run_on_ranks().
inline ExitCode leave_with_others(const char* program, ExitCode code,
                                  const train::StartInfo& info) {
  if (comm::mpi_has_started() || comm::launched_ranks() <= 1) return code;
  return run_on_ranks(
      program, [code](auto) { return code; }, info);
}

/// run_app for programs whose `body` calls run_on_ranks. What is wrong with the command line or the
/// launcher is found by every rank before MPI starts, and only the first says it.
inline int run_mpi_app(const char* program, int argc, char** argv,
                       const std::function<ExitCode(int, char**)>& body) {
  const auto rank_body = [&](int count, char** words) {
    const auto fail = [&](ExitCode code, const char* message, bool meets_others) {
      if (meets_others)
        code = leave_with_others(
            program, code, {.runs = false, .exit_code = static_cast<int>(code), .error = message});
      if (prints_before_mpi()) throw;
      // A launcher ends the job when its first rank ends: that one must have spoken.
      std::this_thread::sleep_for(std::chrono::seconds(1));
      return code;
    };
    try {
      const ExitCode code = with_io_errors([&] { return body(count, words); });
      return leave_with_others(program, code, {.runs = false});
    } catch (const comm::LauncherError& error) {
      return fail(error.code(), error.what(), /*meets_others=*/false);
    } catch (const train::CollectiveError&) {
      throw;
    } catch (const Error& error) {
      return fail(error.code(), error.what(), /*meets_others=*/true);
    } catch (const po::error& error) {
      return fail(ExitCode::usage, error.what(), /*meets_others=*/true);
    }
  };
  const int code = run_app(program, argc, argv, rank_body);
  explain_launcher_banner(code);
  return code;
}

}  // namespace trireme
