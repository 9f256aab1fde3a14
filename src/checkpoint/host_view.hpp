// Tensors as the host sees them, wherever their memory is.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/dtype.hpp"
#include "device/backend.hpp"
#include "grid/hyperslabs.hpp"

namespace trireme::checkpoint {

/// Reads and writes a backend's memory in pieces that pass through one bounded buffer of host
/// memory; host memory is used where it is.
class HostView {
 public:
  /// The most bytes of one piece: MPI's counts and the kernel's writes end at 2 GiB.
  static constexpr std::int64_t kPieceBytes = std::int64_t{64} << 20;

  /// `memory` is the backend whose memory the tensors lie in; null stands for host memory.
  explicit HostView(device::Backend* memory)
      : memory_(memory && !memory->is_host_memory() ? memory : nullptr) {}

  /// Calls use(slabs, elements) for consecutive pieces of `slabs`, whose memory is `data`.
  void read(const grid::Hyperslabs& slabs, DType dtype, const void* data,
            const std::function<void(const grid::Hyperslabs&, const void*)>& use) {
    for_pieces(slabs, dtype,
               [&](const grid::Hyperslabs& piece, std::int64_t offset, std::int64_t bytes) {
                 const std::byte* elements = static_cast<const std::byte*>(data) + offset;
                 if (memory_) {
                   memory_->download(buffer(bytes), elements, bytes);
                   elements = buffer_.data();
                 }
                 use(piece, elements);
               });
  }

  /// Calls fill(slabs, elements) for consecutive pieces, which writes their elements.
  void write(const grid::Hyperslabs& slabs, DType dtype, void* data,
             const std::function<void(const grid::Hyperslabs&, void*)>& fill) {
    for_pieces(slabs, dtype,
               [&](const grid::Hyperslabs& piece, std::int64_t offset, std::int64_t bytes) {
                 std::byte* elements = static_cast<std::byte*>(data) + offset;
                 if (!memory_) return fill(piece, elements);
                 fill(piece, buffer(bytes));
                 memory_->upload(elements, buffer_.data(), bytes);
               });
  }

 private:
  template <typename Use>
  static void for_pieces(const grid::Hyperslabs& slabs, DType dtype, const Use& use) {
    const auto width = static_cast<std::int64_t>(size_of(dtype));
    const std::int64_t step = kPieceBytes / width, count = grid::count_elements(slabs);
    for (std::int64_t begin = 0; begin < count; begin += step) {
      const std::int64_t end = std::min(begin + step, count);
      use(slice_hyperslabs(slabs, begin, end), begin * width, (end - begin) * width);
    }
  }

  void* buffer(std::int64_t bytes) {
    if (static_cast<std::int64_t>(buffer_.size()) < bytes) buffer_.resize(bytes);
    return buffer_.data();
  }

  device::Backend* memory_;
  std::vector<std::byte> buffer_;
};

}  // namespace trireme::checkpoint
