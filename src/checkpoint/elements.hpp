// The elements of tensors on their way between memory and a checkpoint's file. Writing: the
// unfinished file (.part) with plain pwrite() at known offsets, its disk space, the staging through
// host memory, the steps of a save, and compression. Reading: with pread(), on several threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "core/tensor.hpp"
#include "device/backend.hpp"
#include "grid/layout.hpp"

namespace trireme::checkpoint {

/// An existing file open for writing. Every error is an IoError that names the file, this rank and
/// the system's reason; short writes and interrupted calls are continued.
class PartFile {
 public:
  /// `progressed` is called whenever some bytes, a few MiB at most, have been written or synced.
  PartFile(const std::filesystem::path& path, std::function<void()> progressed);
  ~PartFile();
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  /// Cuts the file off, or extends it with zeros.
  void resize(std::int64_t bytes);
  void write(const void* data, std::int64_t bytes, std::int64_t offset);
  /// Writes the elements of `slabs`, of `width` bytes each and in that order in `data`, into the
  /// tensor of `shape` whose elements begin at `offset`, row-major.
  void write(const grid::Hyperslabs& slabs, const Shape& shape, std::int64_t width,
             const void* data, std::int64_t offset);
  /// Returns when everything that this host has written to the file is on the disk.
  void sync();

 private:
  [[noreturn]] void fail(const char* action, int error) const;

  const std::filesystem::path path_;
  const std::function<void()> progressed_;
  std::int64_t unsynced_ = 0;  ///< bytes
  int fd_;
};

/// Creates the folder of `unfinished`, deletes the unfinished files of killed runs in it, and
/// reserves disk space for `count` files of `bytes`: `unfinished` and unfinished.2, unfinished.3,
/// ... Throws IoError.
void reserve_files(const std::filesystem::path& unfinished, std::int64_t bytes, int count = 1);

/// Allocates disk blocks for `bytes` of the file (fallocate), so that a full disk or a quota is one
/// clear error before anything is written. On file systems that do not support it, the writes
/// report it. Throws IoError.
void reserve_space(const std::filesystem::path& path, std::int64_t bytes);

/// Removes the files of reserve_files(). Throws nothing.
void remove_files(const std::filesystem::path& unfinished, int count = 1);

/// Upper bound of the bytes of a checkpoint of `tensors`.
std::int64_t max_file_bytes(const std::string& deck, const std::vector<LocalTensor>& tensors);

/// Gives `file` its size and all of a checkpoint but the elements of its tensors: attributes, the
/// deck, and every tensor with its checksum and the space for its elements. Returns the byte offset
/// of each tensor's elements, which are contiguous and row-major. Called by one rank; no MPI.
///
/// HDF5 writes to a file in memory, which is then copied: HDF5 1.10 cannot close a file whose
/// metadata met a full disk or an error, and crashes when the program ends. Throws IoError, and
/// hdf5::Failure.
std::vector<std::int64_t> write_metadata(PartFile& file, const Attributes& attributes,
                                         const std::string& deck,
                                         const std::vector<LocalTensor>& tensors,
                                         const std::vector<std::uint64_t>& checksums);

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

/// Writes the pieces that this rank owns to `file` and syncs them. No MPI. Throws IoError.
void write_own_elements(PartFile& file, const std::vector<LocalTensor>& tensors,
                        const std::vector<std::int64_t>& offsets, HostView& view);

/// Writes and syncs a few zeros at `offset` on every rank, as write_elements() would write
/// elements. Collective; throws as write_elements() does.
void test_write(const std::filesystem::path& path, comm::MpiCommunicator& ranks,
                std::int64_t offset);

// ---- the steps that save() and BackgroundSave share (checkpoint.cpp)

/// Checks that every rank passes the same names, shapes and types, and that every piece is well
/// formed. Throws InternalError on every rank. Collective.
void check_tensors(comm::MpiCommunicator& ranks, const std::vector<LocalTensor>& tensors);

/// The checksums of the pieces that this rank owns, by tensor. `progressed` is called after each of
/// HostView's pieces. No MPI.
std::vector<std::uint64_t> own_checksums(const std::vector<LocalTensor>& tensors, HostView& view,
                                         const std::function<void()>& progressed);

/// The checksums of the logical tensors: the sums over all ranks of own_checksums(). Throws
/// InternalError naming the tensor, on every rank, unless the owners' pieces cover each tensor
/// once. Collective.
std::vector<std::uint64_t> total_checksums(comm::MpiCommunicator& ranks,
                                           const std::vector<LocalTensor>& tensors,
                                           std::vector<std::uint64_t> own);

/// The absolute name of the file that becomes `path` when it is complete.
std::filesystem::path unfinished_name(const std::filesystem::path& path);

/// Syncs the complete file `unfinished`, renames it to `path` and names it in `latest`. One rank;
/// no MPI. Throws IoError.
void rename_and_publish(const std::filesystem::path& unfinished, const std::filesystem::path& path);

// ---- reading at offsets, with pread(): the elements of a checkpoint's tensors go from the page
// cache to where they belong without HDF5's buffers in between

/// A file open for reading. Every error is an IoError that names it and the system's reason; short
/// reads and interrupted calls are continued.
class InputFile {
 public:
  explicit InputFile(const std::filesystem::path& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  std::int64_t size() const;
  /// Throws also where the file ends before.
  void read(void* data, std::int64_t bytes, std::int64_t offset) const;
  /// Reads the elements of `slabs`, of `width` bytes each and in that order to `data`, of the
  /// tensor of `shape` whose elements begin at `offset`, row-major.
  void read(const grid::Hyperslabs& slabs, const Shape& shape, std::int64_t width,
            std::int64_t offset, void* data) const;

 private:
  const std::filesystem::path path_;
  const int fd_;
};

/// Calls read(i, buffer) for all i below `count` on `threads` threads, and use(i, buffer) on the
/// calling thread in the order of i, once read(i) has returned. `buffer` is that of i in both, of
/// `bytes`, which may be 0; there are two for each thread. Returns when all threads have ended;
/// throws what one of the calls threw, after which others may be left out. No MPI.
void read_ahead(std::size_t count, int threads, std::size_t bytes,
                const std::function<void(std::size_t i, void* buffer)>& read,
                const std::function<void(std::size_t i, const void* buffer)>& use);

// ---- checkpoint.compression

// The elements of a complete unfinished file are compressed, in chunks of
// whole rows, by HDF5's own filters (shuffle, then deflate), so that every HDF5 program reads them.
// Those of small tensors stay as they are.
//
// A second pass over the file, after all ranks have written their elements: chunks are not what
// ranks own, and their places are known only when they are compressed. All CPUs of the first rank's
// node take part, while the other ranks wait or train.

/// What a checkpoint says apart from its elements.
struct Description {
  const Attributes& attributes;
  const std::string& deck;
  const std::vector<LocalTensor>& tensors;
  const std::vector<std::uint64_t>& checksums;
};

/// Replaces `unfinished`, in which the elements of the tensors begin at `offsets`, by a compressed
/// file; until then `unfinished`.z is written. `level`, of deflate, is 1 to 9. `progressed` is
/// called every few MiB. Called by one rank; no MPI. Throws IoError, hdf5::Failure.
void compress(const std::filesystem::path& unfinished, const Description& description,
              const std::vector<std::int64_t>& offsets, int level,
              const std::function<void()>& progressed);

}  // namespace trireme::checkpoint
