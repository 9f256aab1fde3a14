#include "device/cuda/staging.hpp"

#include <algorithm>
#include <cstring>

namespace trireme::device {

Staging::Staging() {
  for (Slot& slot : slots_) {
    void* memory = nullptr;
    TRIREME_CUDA(cudaMallocHost(&memory, kBufferBytes));
    slot.memory = static_cast<std::byte*>(memory);
    slot.copied = std::make_unique<cuda::Event>();
  }
}

Staging::~Staging() {
  for (Slot& slot : slots_) cudaFreeHost(slot.memory);
}

void Staging::upload(void* destination, const void* source, std::size_t bytes,
                     cudaStream_t stream) {
  for (std::size_t begin = 0; begin < bytes; begin += kBufferBytes) {
    const std::size_t part = std::min(kBufferBytes, bytes - begin);
    Slot& slot = slots_[next_];
    next_ = (next_ + 1) % slots_.size();
    slot.copied->synchronize();
    std::memcpy(slot.memory, static_cast<const std::byte*>(source) + begin, part);
    TRIREME_CUDA(cudaMemcpyAsync(static_cast<std::byte*>(destination) + begin, slot.memory, part,
                                 cudaMemcpyHostToDevice, stream));
    slot.copied->record(stream);
  }
}

}  // namespace trireme::device
