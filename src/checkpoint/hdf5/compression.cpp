#include "checkpoint/elements.hpp"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <system_error>

#include "checkpoint/hdf5/metadata.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "core/system/parallel.hpp"

namespace trireme::checkpoint {
namespace {

/// Bytes of a chunk before it is compressed: what HDF5's chunk cache holds without being told.
constexpr std::int64_t kChunkBytes = std::int64_t{512} << 10;
/// Chunks that a thread compresses between two writes, and threads at most: 192 MiB of buffers.
constexpr std::size_t kChunksPerThread = 4;
constexpr unsigned kMaxThreads = 32;

/// How a tensor is divided into chunks of whole rows; elements where it has one axis.
struct Chunking {
  std::int64_t rows, row_bytes, rows_per_chunk;
  explicit Chunking(const LocalTensor& tensor)
      : rows(tensor.shape[0]),
        row_bytes(static_cast<std::int64_t>(size_of(tensor.dtype)) *
                  (tensor.shape.rank() == 2 ? tensor.shape[1] : 1)),
        rows_per_chunk(std::clamp<std::int64_t>(kChunkBytes / row_bytes, 1, rows)) {}
  std::int64_t chunks() const { return (rows + rows_per_chunk - 1) / rows_per_chunk; }
  std::int64_t chunk_bytes() const { return rows_per_chunk * row_bytes; }
};

/// Smaller tensors are stored as they are: the index of a chunk takes 2 KiB and more.
constexpr std::int64_t kMinBytes = std::int64_t{64} << 10;

std::int64_t bytes_of(const LocalTensor& tensor) {
  return tensor.shape.size() * static_cast<std::int64_t>(size_of(tensor.dtype));
}

void set_filters(hid_t creation, const LocalTensor& tensor, int level) {
  if (bytes_of(tensor) < kMinBytes) {
    TRIREME_HDF5(H5Pset_alloc_time, creation, H5D_ALLOC_TIME_EARLY);
    return;
  }
  const Chunking chunking(tensor);
  const std::array<hsize_t, 2> extents = {
      static_cast<hsize_t>(chunking.rows_per_chunk),
      static_cast<hsize_t>(tensor.shape.rank() == 2 ? tensor.shape[1] : 1)};
  TRIREME_HDF5(H5Pset_chunk, creation, tensor.shape.rank(), extents.data());
  TRIREME_HDF5(H5Pset_shuffle, creation);
  TRIREME_HDF5(H5Pset_deflate, creation, static_cast<unsigned>(level));
}

/// A chunk on its way: as it is in the file, shuffled, compressed.
struct Chunk {
  std::vector<unsigned char> elements, shuffled, packed;

  /// Chunk `number` of a tensor whose elements begin at `offset`. Rows past the tensor's end, which
  /// a last chunk has, are zeros.
  void pack(const InputFile& file, const Chunking& chunking, std::size_t width, std::int64_t offset,
            std::int64_t number, int level) {
    const std::int64_t first = number * chunking.rows_per_chunk;
    const std::int64_t bytes =
        std::min(chunking.rows_per_chunk, chunking.rows - first) * chunking.row_bytes;
    elements.assign(static_cast<std::size_t>(chunking.chunk_bytes()), 0);
    file.read(elements.data(), bytes, offset + first * chunking.row_bytes);
    // HDF5's shuffle filter: the first bytes of all elements, then the second ones, ...
    const std::size_t count = elements.size() / width;
    shuffled.resize(elements.size());
    for (std::size_t byte = 0; byte < width; ++byte)
      for (std::size_t i = 0; i < count; ++i)
        shuffled[byte * count + i] = elements[i * width + byte];
    uLongf size = compressBound(static_cast<uLong>(shuffled.size()));
    packed.resize(size);
    const int status = compress2(packed.data(), &size, shuffled.data(),
                                 static_cast<uLong>(shuffled.size()), level);
    TRIREME_CHECK(status == Z_OK, "zlib's compress2 failed with {}", status);
    packed.resize(size);
  }
};

/// Writes the chunks of a dataset in memory to `file`, at the places that HDF5 gives them.
class PackedWriter {
 public:
  PackedWriter(const InputFile& elements, MemoryFile& memory, PartFile& file, int level)
      : elements_(elements),
        memory_(memory),
        file_(file),
        level_(level),
        threads_(usable_threads(kMaxThreads)),
        chunks_(threads_ * kChunksPerThread) {}

  void write(hid_t dataset, const LocalTensor& tensor, std::int64_t offset) {
    if (bytes_of(tensor) < kMinBytes) return copy(dataset, tensor, offset);
    const Chunking chunking(tensor);
    const auto count = static_cast<std::size_t>(chunking.chunks());
    for (std::size_t first = 0; first < count; first += chunks_.size()) {
      const std::size_t batch = std::min(chunks_.size(), count - first);
      in_parallel(batch, threads_, [&](std::size_t i) {
        chunks_[i].pack(elements_, chunking, size_of(tensor.dtype), offset,
                        static_cast<std::int64_t>(first + i), level_);
      });
      for (std::size_t i = 0; i < batch; ++i)
        put(dataset, chunks_[i].packed,
            static_cast<std::int64_t>(first + i) * chunking.rows_per_chunk);
      // HDF5 has its copies no longer in buffers: their memory is freed.
      TRIREME_HDF5(H5Fflush, dataset, H5F_SCOPE_LOCAL);
      for (std::size_t i = ranges_.size() - batch; i < ranges_.size(); ++i)
        memory_.free(ranges_[i].offset, ranges_[i].bytes);
    }
  }

  const std::vector<ElementRange>& ranges() const { return ranges_; }

 private:
  /// The elements of a small tensor go to the file in memory: they share pages with the structure.
  void copy(hid_t dataset, const LocalTensor& tensor, std::int64_t offset) {
    std::vector<std::byte> buffer(static_cast<std::size_t>(bytes_of(tensor)));
    elements_.read(buffer.data(), bytes_of(tensor), offset);
    TRIREME_HDF5(H5Dwrite, dataset, hdf5::memory_type(tensor.dtype), H5S_ALL, H5S_ALL, H5P_DEFAULT,
                 buffer.data());
    const haddr_t address = H5Dget_offset(dataset);
    TRIREME_CHECK(address != HADDR_UNDEF, "HDF5 has no space for '{}'", tensor.name);
    ranges_.push_back({static_cast<std::int64_t>(address), bytes_of(tensor)});
  }

  void put(hid_t dataset, const std::vector<unsigned char>& packed, std::int64_t row) {
    const std::array<hsize_t, 2> at = {static_cast<hsize_t>(row), 0};
    TRIREME_HDF5(H5Dwrite_chunk, dataset, H5P_DEFAULT, 0, at.data(), packed.size(), packed.data());
    unsigned mask = 0;
    haddr_t address = HADDR_UNDEF;
    hsize_t bytes = 0;
    TRIREME_HDF5(H5Dget_chunk_info_by_coord, dataset, at.data(), &mask, &address, &bytes);
    TRIREME_CHECK(address != HADDR_UNDEF && bytes == packed.size(), "HDF5 has no chunk of row {}",
                  row);
    ranges_.push_back({static_cast<std::int64_t>(address), static_cast<std::int64_t>(bytes)});
    file_.write(packed.data(), std::ssize(packed), ranges_.back().offset);
  }

  const InputFile& elements_;
  MemoryFile& memory_;
  PartFile& file_;
  int level_;
  std::size_t threads_;
  std::vector<Chunk> chunks_;
  std::vector<ElementRange> ranges_;
};

void create_file(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (file < 0) throw IoError("cannot create '{}': {}", path.string(), std::strerror(errno));
  ::close(file);
}

}  // namespace

void compress(const std::filesystem::path& unfinished, const Description& description,
              const std::vector<std::int64_t>& offsets, int level,
              const std::function<void()>& progressed) {
  const std::filesystem::path packed = unfinished.string() + ".z";
  std::error_code ignored;
  std::filesystem::remove(packed, ignored);
  try {
    create_file(packed);
    const InputFile elements(unfinished);
    MemoryFile memory;
    PartFile file(packed, progressed);
    PackedWriter writer(elements, memory, file, level);
    const DatasetMaker maker{
        [&](hid_t creation, const LocalTensor& tensor) { set_filters(creation, tensor, level); },
        [&](hid_t dataset, std::size_t i) {
          writer.write(dataset, description.tensors[i], offsets[i]);
        }};
    write_hdf5(memory.path(), description.attributes, description.deck, description.tensors,
               description.checksums, maker);
    memory.copy_to(file);
    append_trailer(file, memory, writer.ranges());
    file.sync();
    std::filesystem::rename(packed, unfinished);
  } catch (const std::filesystem::filesystem_error& error) {
    std::filesystem::remove(packed, ignored);
    throw IoError("{}", error.what());
  } catch (...) {
    std::filesystem::remove(packed, ignored);
    throw;
  }
}

}  // namespace trireme::checkpoint
