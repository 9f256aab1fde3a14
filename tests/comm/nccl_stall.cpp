// Two ranks of which one stalls or fails while the other waits for it on the GPU.
//   mpirun -n 2 nccl_stall slow|absent|stall|peer|copies|message|call|fail
#include <cstdio>
#include <string_view>
#include <thread>

#include "comm/communicator.hpp"
#include "comm/mpi/mpi_communicator.hpp"
#include "core/error.hpp"
#include "device_memory.hpp"
#include "rank_gpu.hpp"

namespace trireme::comm {
namespace {

constexpr double kTimeout = 3.0;  // seconds

void sleep_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

void run(std::string_view scenario, MpiCommunicator& world) {
  const bool guilty = world.rank() == 1;
  const cuda::Stream stream;
  if (scenario == "absent" && guilty) sleep_for(10 * kTimeout);
  const auto group =
      make_device_communicator(world, "data", stream.get(),
                               {.timeout_seconds = scenario == "fail" ? 600.0 : kTimeout,
                                .routes = pipeline_routes(2),
                                .message_bytes = scenario == "message" ? 4000u : 0u,
                                .through_peers = scenario == "peer" || scenario == "copies"});
  const std::vector<double> ones(2000, 1.0);
  const DeviceArray array(ones, DType::f32, stream.get());
  const auto shared = group->register_buffer(array.data(), 2000 * sizeof(float));
  if (shared) group->set_staging_buffer(array.data(1000), 1000 * sizeof(float), 0);
  const auto reduce = [&] { group->all_reduce(array.data(), 1000, DType::f32, Reduce::sum); };
  reduce();
  TRIREME_CHECK(array.read()[0] == 2.0, "wrong sum");

  if (scenario == "slow") {
    // Nothing waits while both ranks do something else, however long.
    sleep_for(1.5 * kTimeout);
    world.barrier();
    reduce();
    TRIREME_CHECK(array.read()[0] == 4.0, "wrong sum");
  } else if (scenario == "stall" || scenario == "peer") {
    reduce();
    if (guilty) sleep_for(10 * kTimeout);
    reduce();
    array.read();
  } else if (scenario == "copies") {
    const auto overlapped = [&] {
      group->start_all_reduce(array.data(), 1000, DType::f32, Reduce::sum)->wait();
    };
    overlapped();
    if (guilty) sleep_for(10 * kTimeout);
    overlapped();
    array.read();
  } else if (scenario == "message") {
    if (guilty) sleep_for(10 * kTimeout);
    group->receive(array.data(), 4000, 1, kGradientTag)->wait();
    array.read();
  } else if (scenario == "call") {
    // The first all-gather connects the ranks anew: the call itself may wait.
    if (guilty) sleep_for(10 * kTimeout);
    group->all_gather(array.data(), 500, DType::f32);
    array.read();
  } else if (scenario == "fail") {
    if (guilty) throw DataError("rank 1 found bad data");
    reduce();
    array.read();
  }
}

int run_and_report(std::string_view scenario) {
  const auto world = MpiCommunicator::world();
  if (const std::string missing = take_gpu_of_rank(); !missing.empty()) {
    if (world->rank() == 0) std::printf("SKIPPED: %s\n", missing.c_str());
    return 77;
  }
  try {
    run(scenario, *world);
    std::printf("finished\n");
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "rank %d: %s\n", world->rank(), error.what());
    abort_all(static_cast<int>(error.code()));
  }
}

}  // namespace
}  // namespace trireme::comm

int main(int argc, char** argv) {
  const trireme::comm::MpiEnvironment environment;
  return trireme::comm::run_and_report(argc > 1 ? argv[1] : "");
}
