// Ranks of which one does not take part while others wait for it on the host.
//   mpirun -n 3 mpi_stall
//   slow|busy|progress|computing|spinning|work|stopped|chain|circle|code|library|finalize [FOLDER]
// With FOLDER each rank writes its stacks to FOLDER/<rank>.
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <thread>

#include "comm/mpi/mpi_communicator.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/system/process.hpp"

namespace trireme::comm {
namespace {

constexpr double kTimeout = 2.0;  // seconds

void sleep_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

/// Stops this process until the launcher ends it.
void stop() { std::raise(SIGSTOP); }

void run(std::string_view scenario, MpiCommunicator& world) {
  const int rank = world.rank();
  const bool last = rank == world.size() - 1;
  if (scenario == "slow") {
    // No rank waits while all ranks do something else, however long.
    sleep_for(1.5 * kTimeout);
    world.barrier();
  } else if (scenario == "busy") {
    if (last) sleep_for(10 * kTimeout);
    world.barrier();
  } else if (scenario == "progress") {
    // The others wait as long as work progresses, and no longer once its rank is stopped.
    if (last) {
      WatchedWork work = world.work("writing a file");
      for (int i = 0; i < 10; ++i) {
        sleep_for(0.2 * kTimeout);
        work.note_progress();
      }
      stop();
    }
    world.barrier();
  } else if (scenario == "computing") {
    // As "progress", by the CPU time of work that notes nothing.
    if (last) {
      const WatchedWork work = world.work("computing", /*minimum=*/0.0, ProgressBy::cpu_time);
      const Stopwatch watch;
      while (watch.seconds() < 2 * kTimeout) {
      }
      stop();
    }
    world.barrier();
  } else if (scenario == "spinning") {
    // To wait for a rank takes CPU time, but is no progress.
    if (last) {
      sleep_for(10 * kTimeout);
    } else {
      const WatchedWork work = world.work("opening", /*minimum=*/0.0, ProgressBy::cpu_time);
      world.barrier();
    }
  } else if (scenario == "work") {
    // Work that hangs is named by its rank, which is not waiting for any other.
    if (last) {
      const WatchedWork work = world.work("writing a file");
      sleep_for(10 * kTimeout);
    }
    world.barrier();
  } else if (scenario == "stopped") {
    if (last) stop();
    world.barrier();
  } else if (scenario == "code") {
    Watchdog::shared()->set_exit_code(ExitCode::stopped_early);
    if (last) stop();
    world.barrier();
  } else if (scenario == "chain") {
    // Rank 0 waits for rank 1, which waits for rank 2, which is not in their group.
    const auto front = world.split(rank < 2 ? 0 : -1, rank, "front");
    const auto back = world.split(rank > 0 ? 0 : -1, rank, "back");
    if (last) stop();
    if (rank == 1) {
      sleep_for(0.5 * kTimeout);
      back->barrier();
    }
    front->barrier();
  } else if (scenario == "circle") {
    char byte = 0;
    world.receive(&byte, 1, (rank + 1) % world.size(), 0)->wait();
  } else if (scenario == "library") {
    if (last) sleep_for(10 * kTimeout);
    const auto watched = world.watch("closing a file");
    MPI_Barrier(world.handle());
  }
}

}  // namespace
}  // namespace trireme::comm

int main(int argc, char** argv) {
  using namespace trireme::comm;
  const std::string_view scenario = argc > 1 ? argv[1] : "";
  const MpiEnvironment environment;
  bool stops_at_end = false;
  {
    const auto world = MpiCommunicator::world();
    world->barrier();  // a busy machine starts the ranks seconds apart
    world->set_timeout(kTimeout);
    if (argc > 2)
      trireme::keep_stacks(std::filesystem::path(argv[2]) / std::to_string(world->rank()));
    run(scenario, *world);
    stops_at_end = scenario == "finalize" && world->rank() == 0;
    if (world->rank() == 0) std::printf("finished\n");
  }
  std::fflush(stdout);
  if (stops_at_end) stop();
}
