// What programs that run under mpirun or srun share.
#pragma once

#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <thread>

#include "app.hpp"
#include "comm/mpi/mpi_communicator.hpp"
#include "train/startup.hpp"

namespace trireme {

/// Starts MPI and runs `body` with the world. An error that all ranks throw alike is printed once
/// and all return its code; any other takes the whole job down within seconds, with the rank and
/// host that had it.
inline ExitCode run_on_ranks(
    const char* program,
    const std::function<ExitCode(std::unique_ptr<comm::MpiCommunicator>)>& body) {
  const comm::MpiEnvironment environment;
  auto world = comm::MpiCommunicator::world();
  const int rank = world->rank();
  const int size = world->size();
  const auto fail = [&](ExitCode code, const char* message) {
    // Rank 0 speaks first: when all fail of one cause, it is said once.
    if (rank != 0) std::this_thread::sleep_for(std::chrono::seconds(1));
    const std::string where =
        size > 1 ? fmt::format("rank {} on {}: ", rank, comm::host_name()) : "";
    std::fputs(fmt::format("{}: {}{}\n", program, where, message).c_str(), stderr);
    comm::abort_all(static_cast<int>(code));
  };
  try {
    comm::check_launcher(size);
    return body(std::move(world));
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

}  // namespace trireme
