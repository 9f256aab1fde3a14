#include "train/devices.hpp"

#include <cstdlib>
#include <filesystem>

#include "comm/nccl/device_communicator.hpp"
#include "core/files.hpp"
#include "core/identity.hpp"
#include "kernels/host/threads.hpp"
#include "plan/remedies.hpp"
#include "plan/run_plan.hpp"
#include "plan/setup.hpp"
#include "train/launch_checks.hpp"

namespace trireme::train {
namespace {

/// Where timed choices of product kernels are kept between runs: the user's cache folder; "" when
/// there is none.
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
  return error ? "" : (folder / "products.txt").string();
}

Devices make_host(const deck::Deck& deck, std::unique_ptr<comm::MpiCommunicator> world) {
  const int threads = device::threads_for_rank(comm::ranks_sharing_cores(*world));
  return {.backend = device::make_host_backend(threads),
          .groups = comm::make_groups(std::move(world), plan::layout(deck)),
          .description = fmt::format("{} thread{} a rank, host backend, {}", threads,
                                     threads == 1 ? "" : "s", name_of(plan::compute_dtype(deck)))};
}

Devices make_cuda(const deck::Deck& deck, std::unique_ptr<comm::MpiCommunicator> world) {
  check_gpus(*world, deck);
  const int index = comm::node_local_rank(*world);
  const auto gpus = device::visible_gpus();
  // The host draws the initial weights: not each rank with all cores.
  kernels::host::use_threads(device::threads_for_rank(comm::ranks_sharing_cores(*world)));
  auto backend = device::make_cuda_backend(index, gemm_cache());
  const grid::Layout layout = plan::layout(deck);
  const auto connect = [&](std::unique_ptr<comm::MpiCommunicator> ranks) {
    const std::string name = ranks->name();
    comm::NcclOptions options{.timeout_seconds = deck::in_seconds(deck.comm.timeout),
                              .debug = deck.comm.nccl_debug.value_or("")};
    if (name == "pipeline") {
      options.routes = comm::pipeline_routes(ranks->size(), layout.chunks);
      options.message_bytes = plan::message_bytes(deck);
    }
    options.through_peers = name == "tensor";
    return comm::make_device_communicator(*ranks, name, backend->stream(), options);
  };
  comm::Groups groups = comm::make_groups(std::move(world), layout, connect);
  return {.backend = std::move(backend),
          .groups = std::move(groups),
          .description = fmt::format("cuda backend on {}, {}", gpus[index].name,
                                     name_of(plan::compute_dtype(deck)))};
}

/// "the optimizer state takes 2.1 GiB": the purpose of a plan that takes most.
std::string largest_purpose(const plan::MemoryPlan& memory) {
  const std::pair<const char*, std::size_t> purposes[] = {
      {"the weights take", memory.weights},
      {"the gradients take", memory.gradients},
      {"the optimizer state takes", memory.optimizer},
      {"the activations take", memory.activations},
      {"the workspace takes", memory.workspace},
      {"the transfer buffers take", memory.communication},
      {"the libraries take", memory.libraries}};
  const auto* largest = std::max_element(std::begin(purposes), std::end(purposes),
                                         [](auto& a, auto& b) { return a.second < b.second; });
  return fmt::format("{} {}", largest->first, human_bytes(static_cast<double>(largest->second)));
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

void require_memory(const deck::Deck& deck, std::int64_t vocab, const device::Backend& backend) {
  const device::Backend::Memory memory = backend.memory();
  if (memory.total == 0) return;
  const std::size_t free = memory.total - memory.used;
  const std::size_t needed = plan::needed_bytes(deck, vocab);  // libraries are loaded already
  if (needed <= free) return;
  throw CodedError<ExitCode::failure>("the plan needs {} of GPU memory, {} of {} are free; {}; {}",
                                      human_bytes(static_cast<double>(needed)),
                                      human_bytes(static_cast<double>(free)),
                                      human_bytes(static_cast<double>(memory.total)),
                                      largest_purpose(plan::plan_run(deck, vocab).largest().memory),
                                      plan::to_text(plan::remedies(deck, vocab, free)));
}

}  // namespace trireme::train
