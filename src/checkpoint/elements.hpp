// The elements of tensors on their way between the memory of a backend and a checkpoint's file.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "core/dtype.hpp"
#include "device/backend.hpp"
#include "grid/hyperslabs.hpp"

namespace trireme::checkpoint {

/// Reads and writes tensors in a backend's memory in pieces, through one staging buffer of host
/// memory; host memory is accessed in place.
class HostView {
 public:
  /// Maximum bytes of a piece: MPI's counts and the kernel's writes end at 2 GiB.
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

/// Writes the pieces that this rank owns, which `view` reads, to the file at `path`, where the
/// elements of `tensors` begin at `offsets` (write_metadata()), and syncs them.
///
/// Ranks write independently of each other, and agree on success after at most a GiB of each:
/// an error of one rank ends the save on all. MPI-IO and collective HDF5 are not used: a rank whose
/// write fails in their collective calls leaves the others waiting, without a reason. Collective;
/// throws, on every rank, IoError with the file, the rank and the system's reason.
void write_elements(const std::filesystem::path& path, comm::MpiCommunicator& ranks,
                    const std::vector<LocalTensor>& tensors,
                    const std::vector<std::int64_t>& offsets, HostView& view);

/// Writes and syncs a few zeros at `offset` on every rank, as write_elements() would write
/// elements. Collective; throws as write_elements() does.
void test_write(const std::filesystem::path& path, comm::MpiCommunicator& ranks,
                std::int64_t offset);

}  // namespace trireme::checkpoint
