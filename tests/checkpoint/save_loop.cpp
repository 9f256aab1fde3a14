// Saves one checkpoint after the other until it is killed: what the kill test kills.
// save_loop FOLDER FIRST LAST
#include <unistd.h>

#include <cstdio>
#include <string>

#include "checkpoint/file.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "save_loop.hpp"

int main(int argc, char** argv) {
  using namespace trireme;
  using namespace trireme::checkpoint;
  if (argc != 4) return static_cast<int>(ExitCode::usage);
  const std::filesystem::path folder = argv[1];
  const comm::MpiEnvironment environment;
  const auto world = comm::MpiCommunicator::world();
  try {
    write_file_atomically(folder / ("pid." + std::to_string(world->rank())),
                          std::to_string(::getpid()));
    for (std::int64_t step = std::stoll(argv[2]); step <= std::stoll(argv[3]); ++step) {
      ShardedTensors sharded(loop_model(), Sharding::columns, world->rank(), world->size());
      fill_quickly(sharded, step);
      save(step_path(folder / "checkpoints", step), *world, {{"iteration", step}}, "",
           sharded.tensors);
      if (world->rank() == 0) retain(folder / "checkpoints", 2);
    }
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    comm::abort_all(static_cast<int>(error.code()));
  }
  return 0;
}
