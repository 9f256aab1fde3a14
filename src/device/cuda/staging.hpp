// Pinned host memory through which data reaches the GPU without holding up the host.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "core/cuda/check.hpp"

namespace trireme::device {

/// A ring of pinned buffers. A buffer is used again once the copy from it is done, so that the host
/// waits only when it is more than the ring ahead of the GPU.
class Staging {
 public:
  Staging();
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Queues a copy of host memory to the GPU; `source` may be changed as soon as this returns.
  void upload(void* destination, const void* source, std::size_t bytes, cudaStream_t stream);

 private:
  static constexpr std::size_t kBufferBytes = std::size_t{4} << 20;
  struct Slot {
    std::byte* memory = nullptr;
    std::unique_ptr<cuda::Event> copied;
  };
  std::array<Slot, 8> slots_;
  std::size_t next_ = 0;
};

}  // namespace trireme::device
