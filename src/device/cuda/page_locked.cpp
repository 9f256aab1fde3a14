#include "device/cuda/page_locked.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>

#include "core/cuda/check.hpp"
#include "core/system/process.hpp"
#include "kernels/host/compute.hpp"

namespace trireme::device {
namespace {

/// Buffers from here on are mapped by map_page_locked().
constexpr std::size_t kLarge = std::size_t{64} << 20;
/// Threads that fault in a mapping: 19.6 GB take one of them 2.4 s, and 16 of them 0.35 s.
constexpr std::size_t kMaxThreads = 16;
constexpr std::size_t kPage = 4096;

/// Maps memory, faults in its pages by the host's threads, and registers it with CUDA. Null where
/// one of these is refused: locked memory may be limited (RLIMIT_MEMLOCK).
Buffer map_page_locked(std::size_t bytes) {
  // Faulting in more than there is would end the process instead of failing.
  if (static_cast<std::int64_t>(bytes) > available_memory()) return nullptr;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  madvise(memory, bytes, MADV_HUGEPAGE);
  // After a fork, writes by this process would go to new pages, which the GPU does not see.
  madvise(memory, bytes, MADV_DONTFORK);
  const std::size_t part = ((bytes + kMaxThreads - 1) / kMaxThreads + kPage - 1) / kPage * kPage;
  kernels::host::parallel_for(kMaxThreads, [&](std::int64_t i) {
    const std::size_t begin = static_cast<std::size_t>(i) * part;
    for (std::size_t page = begin; page < std::min(begin + part, bytes); page += kPage)
      static_cast<volatile std::byte*>(memory)[page] = std::byte{};
  });
  if (cudaHostRegister(memory, bytes, cudaHostRegisterDefault) != cudaSuccess) {
    cudaGetLastError();  // not to be reported again by the next launch
    munmap(memory, bytes);
    return nullptr;
  }
  return Buffer(memory, [bytes](void* address) {
    cudaHostUnregister(address);
    munmap(address, bytes);
  });
}

}  // namespace

Buffer allocate_page_locked(std::size_t bytes) {
  if (bytes >= kLarge)
    if (Buffer mapped = map_page_locked(bytes)) return mapped;
  void* memory = nullptr;
  const cudaError_t code = cudaMallocHost(&memory, std::max<std::size_t>(bytes, 1));
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // not to be reported again by the next launch
    return nullptr;
  }
  TRIREME_CUDA(code);
  return Buffer(memory, [](void* address) { cudaFreeHost(address); });
}

}  // namespace trireme::device
