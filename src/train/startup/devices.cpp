#include "train/startup/devices.hpp"

#include <cstdlib>
#include <filesystem>

#include "comm/communicator.hpp"
#include "core/files.hpp"
#include "core/system/process.hpp"
#include "kernels/host/compute.hpp"
#include "plan/run_plan.hpp"
#include "plan/setup.hpp"
#include "train/startup/startup.hpp"

namespace trireme::train {
namespace {

/// The tuning cache, which keeps the timed choices of GEMM algorithms between runs, in the user's
/// cache folder; "" when there is none.
std::string gemm_cache() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  std::filesystem::path folder = cache  ? std::filesystem::path(cache)
                                 : home ? std::filesystem::path(home) / ".cache"
                                        : std::filesystem::path();
  if (folder.empty()) return "";
  folder /= "trireme";
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  return error ? "" : (folder / "gemm_tuning.txt").string();
}

Devices make_host(const deck::Deck& deck, std::unique_ptr<comm::MpiCommunicator> world) {
  const int threads = device::threads_for_rank(comm::ranks_sharing_cores(*world));
  return {.backend = device::make_host_backend(threads),
          .groups = comm::make_groups(std::move(world), plan::layout(deck)),
          .description =
              fmt::format("{} thread{} a rank, host backend, {}", threads, threads == 1 ? "" : "s",
                          name_of(plan::precision(deck).activations))};
}

Devices make_cuda(const deck::Deck& deck, std::unique_ptr<comm::MpiCommunicator> world) {
  check_gpus(*world, deck);
  const int index = comm::node_local_rank(*world);
  const auto gpus = device::visible_gpus();
  // The host draws the initial weights: not each rank with all cores.
  kernels::host::use_threads(device::threads_for_rank(comm::ranks_sharing_cores(*world)));
  auto backend = device::make_cuda_backend(index, gemm_cache());
  const grid::Layout layout = plan::layout(deck);
  const auto connect = [&](comm::Axis axis, std::unique_ptr<comm::MpiCommunicator> ranks) {
    comm::NcclOptions options{.timeout_seconds = deck::in_seconds(deck.comm.timeout),
                              .debug = deck.comm.nccl_debug.value_or("")};
    if (axis == comm::Axis::pipeline) {
      options.routes = comm::pipeline_routes(ranks->size(), layout.chunks);
      options.message_bytes = plan::message_bytes(deck);
    }
    options.through_peers = axis == comm::Axis::tensor;
    return comm::make_device_communicator(*ranks, ranks->name(), backend->stream(), options);
  };
  comm::Groups groups = comm::make_groups(std::move(world), layout, connect);
  return {.backend = std::move(backend),
          .groups = std::move(groups),
          .description = fmt::format("cuda backend on {}, {}", gpus[index].name,
                                     name_of(plan::precision(deck).activations))};
}

/// Why this rank's host has no room for what its ranks need; "" when it has.
std::string host_memory_problem(const deck::Deck& deck, std::int64_t vocab,
                                const plan::RunPlan& plan, const plan::MemoryPlan& mine,
                                comm::MpiCommunicator& world) {
  const std::vector<std::string> hosts = world.all_gather_text(host_name());
  std::vector<double> needs(world.size());
  needs[world.rank()] = static_cast<double>(mine.total() - mine.libraries);
  world.all_gather(needs.data(), 1, DType::f64);
  const std::int64_t available = available_memory();
  world.barrier();  // before any rank allocates
  double together = 0;
  std::size_t ranks = 0;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (hosts[rank] != hosts[world.rank()]) continue;
    together += needs[rank];
    ++ranks;
  }
  if (available == 0) return "";
  return plan::host_memory_problem(deck, vocab, plan, ranks, static_cast<std::size_t>(together),
                                   static_cast<std::size_t>(available));
}

}  // namespace

deck::Device automatic_device() {
  return device::visible_gpus().empty() ? deck::Device::host : deck::Device::cuda;
}

Devices make_devices(const deck::Deck& deck, std::unique_ptr<comm::MpiCommunicator> world) {
  world->set_timeout(deck::in_seconds(deck.comm.timeout));
  return deck.run.device == deck::Device::cuda ? make_cuda(deck, std::move(world))
                                               : make_host(deck, std::move(world));
}

std::optional<plan::AvailableMemory> memory_here(const deck::Deck& deck) {
  if (deck.run.device == deck::Device::host) {
    const std::int64_t available = available_memory();
    if (available == 0) return std::nullopt;
    return plan::AvailableMemory{static_cast<std::size_t>(available), "that this host has free"};
  }
  std::optional<plan::AvailableMemory> smallest;
  for (const device::Gpu& gpu : device::visible_gpus())
    if (!smallest || gpu.memory_bytes < smallest->bytes)
      smallest = {gpu.memory_bytes, fmt::format("that this machine's {} has", gpu.name)};
  return smallest;
}

void require_memory(const deck::Deck& deck, std::int64_t vocab, const device::Backend& backend,
                    const comm::Groups& groups) {
  const plan::RunPlan plan = plan::plan_run(deck, vocab);
  const plan::MemoryPlan& mine = plan.stages[groups.place.pipeline].memory;
  const device::Backend::Memory memory = backend.memory();
  refuse(*groups.world, ExitCode::failure,
         memory.total > 0
             ? plan::gpu_memory_problem(deck, vocab, mine, memory.total - memory.used, memory.total)
             : host_memory_problem(deck, vocab, plan, mine, *groups.world));
}

}  // namespace trireme::train
