#include "comm/peer/peer_memory.hpp"

#include <array>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "core/cuda/check.hpp"

namespace trireme::comm {
namespace {

/// Whether a call succeeded; a failure is not to be reported again by the next launch.
bool works(cudaError_t code) {
  if (code != cudaSuccess) cudaGetLastError();
  return code == cudaSuccess;
}

bool on_all(MpiCommunicator& ranks, bool mine) {
  return ranks.all_reduce(mine ? 1.0 : 0.0, Reduce::min) > 0.0;
}

/// Whether `device` can reach the GPU at `bus`, another one. A GPU that this process does not see
/// may still be reached: mapping its memory will tell.
bool reaches(int device, const std::string& bus) {
  int other = 0, can = 1;
  if (!works(cudaDeviceGetByPCIBusId(&other, bus.c_str()))) return true;
  return other != device && works(cudaDeviceCanAccessPeer(&can, device, other)) && can == 1;
}

}  // namespace

bool peers_reach_each_other(MpiCommunicator& ranks) {
  const bool possible = ranks.size() == 2 || ranks.size() == 4 || ranks.size() == 8;
  if (!possible || !on_all(ranks, ranks.split_by_node()->size() == ranks.size())) return false;
  int device = 0;
  std::array<char, 32> bus{};
  TRIREME_CUDA(cudaGetDevice(&device));
  TRIREME_CUDA(cudaDeviceGetPCIBusId(bus.data(), bus.size(), device));
  const std::vector<std::string> buses = ranks.all_gather_text(bus.data());
  bool all = true;
  for (int peer = 0; peer < ranks.size(); ++peer)
    if (peer != ranks.rank()) all = all && reaches(device, buses[peer]);
  return on_all(ranks, all);
}

PeerMemory::PeerMemory(MpiCommunicator& ranks, void* base, std::size_t bytes)
    : ranks_(ranks), bytes_(bytes) {
  bases_[ranks.rank()] = static_cast<std::byte*>(base);
}

std::unique_ptr<PeerMemory> PeerMemory::open(MpiCommunicator& ranks, void* base,
                                             std::size_t bytes) {
  TRIREME_CUDA(cudaDeviceSynchronize());
  std::unique_ptr<PeerMemory> memory(new PeerMemory(ranks, base, bytes));
  if (on_all(ranks, memory->map())) return memory;
  return nullptr;  // what was mapped is unmapped on every rank
}

bool PeerMemory::map() {
  cudaIpcMemHandle_t own;
  const bool shared = works(cudaIpcGetMemHandle(&own, bases_[ranks_.rank()]));
  const std::vector<std::string> handles = ranks_.all_gather_text(
      shared ? std::string(reinterpret_cast<const char*>(&own), sizeof own) : "");
  bool all = true;
  for (int peer = 0; peer < ranks_.size(); ++peer) {
    if (peer == ranks_.rank()) continue;
    cudaIpcMemHandle_t handle;
    void* mapped = nullptr;
    if (handles[peer].size() == sizeof handle) {
      std::memcpy(&handle, handles[peer].data(), sizeof handle);
      if (!works(cudaIpcOpenMemHandle(&mapped, handle, cudaIpcMemLazyEnablePeerAccess)))
        mapped = nullptr;
    }
    bases_[peer] = static_cast<std::byte*>(mapped);
    all = all && mapped;
  }
  return all && shared;
}

void PeerMemory::unmap() {
  for (int peer = 0; peer < ranks_.size(); ++peer)
    if (peer != ranks_.rank() && bases_[peer]) cudaIpcCloseMemHandle(bases_[peer]);
}

PeerMemory::~PeerMemory() {
  if (std::uncaught_exceptions() > 0) return;
  cudaDeviceSynchronize();  // kernels of this rank that still use the mappings
  unmap();
  try {
    ranks_.barrier();
  } catch (const Error&) {  // a rank is gone, and the job with it
  }
}

bool PeerMemory::holds(const void* data, std::size_t bytes) const {
  const auto* begin = static_cast<const std::byte*>(data);
  const std::byte* base = bases_[ranks_.rank()];
  return begin >= base && begin + bytes <= base + bytes_;
}

}  // namespace trireme::comm
