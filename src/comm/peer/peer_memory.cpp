#include "comm/peer/peer_memory.hpp"

#include <array>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "core/cuda/check.hpp"
#include "core/cuda/driver.hpp"

namespace trireme::comm {
namespace {

/// Whether a call succeeded; clears the error, which the next launch would report again.
bool works(cudaError_t code) {
  if (code != cudaSuccess) cudaGetLastError();
  return code == cudaSuccess;
}

bool on_all(MpiCommunicator& ranks, bool mine) {
  return ranks.all_reduce(mine ? 1.0 : 0.0, Reduce::min) > 0.0;
}

/// Whether `device` can access the memory of another GPU, at `bus`. A GPU that is not visible to
/// this process may still be accessible: mapping its memory will tell.
bool reaches(int device, const std::string& bus) {
  int other = 0, can = 1;
  if (!works(cudaDeviceGetByPCIBusId(&other, bus.c_str()))) return true;
  return other != device && works(cudaDeviceCanAccessPeer(&can, device, other)) && can == 1;
}

CUdeviceptr address_of(const std::uint32_t* flag) { return reinterpret_cast<CUdeviceptr>(flag); }

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
  return nullptr;  // every rank unmaps what it has mapped
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
  } catch (const Error&) {  // a rank is lost, and the job ends
  }
}

bool PeerMemory::holds(const void* data, std::size_t bytes) const {
  const auto* begin = static_cast<const std::byte*>(data);
  const std::byte* base = bases_[ranks_.rank()];
  return begin >= base && begin + bytes <= base + bytes_;
}

// ---------------------------------------------------------------------------- flags

void raise_flag(cudaStream_t stream, std::uint32_t* flag, std::uint32_t epoch) {
  static const auto write = reinterpret_cast<decltype(&cuStreamWriteValue32)>(
      cuda::driver_function("cuStreamWriteValue32"));
  cuda::check_driver(write(stream, address_of(flag), epoch, CU_STREAM_WRITE_VALUE_DEFAULT),
                     "writing a flag from a stream");
}

void await_flag(cudaStream_t stream, const std::uint32_t* flag, std::uint32_t epoch) {
  static const auto wait = reinterpret_cast<decltype(&cuStreamWaitValue32)>(
      cuda::driver_function("cuStreamWaitValue32"));
  cuda::check_driver(wait(stream, address_of(flag), epoch, CU_STREAM_WAIT_VALUE_GEQ),
                     "waiting for a flag in a stream");
}

}  // namespace trireme::comm
