// write_checkpoint(): a checkpoint that one process writes without MPI, on several threads.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <string>
#include <system_error>
#include <vector>

#include "checkpoint/checksum.hpp"
#include "checkpoint/elements.hpp"
#include "checkpoint/file.hpp"
#include "checkpoint/hdf5/handles.hpp"
#include "checkpoint/hdf5/metadata.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "core/system/parallel.hpp"
#include "core/text.hpp"

namespace trireme::checkpoint {
namespace {

constexpr std::size_t kMaxWriters = 16;

/// Elements that one thread makes and writes before it takes others: 16 MiB, unless a row is
/// longer.
constexpr std::int64_t kElementsPerPart = std::int64_t{4} << 20;

/// Rows [begin, end) of a tensor.
struct RowChunk {
  std::size_t tensor = 0;
  std::int64_t begin = 0, end = 0;
};

/// Those of all tensors that are not zeros.
std::vector<RowChunk> row_chunks(const std::vector<WholeTensor>& tensors) {
  std::vector<RowChunk> chunks;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].is_zero()) continue;
    const grid::Hyperslab whole = grid::whole_tensor(tensors[i].shape);
    const std::int64_t rows =
        std::max<std::int64_t>(1, kElementsPerPart / std::max<std::int64_t>(1, whole.columns));
    for (std::int64_t row = 0; row < whole.rows; row += rows)
      chunks.push_back({i, row, std::min(row + rows, whole.rows)});
  }
  return chunks;
}

/// Makes the chunks' elements and writes them to a file whose structure is there.
class ElementWriter {
 public:
  ElementWriter(const std::filesystem::path& path, const std::vector<WholeTensor>& tensors,
                const std::vector<std::int64_t>& offsets, std::FILE* progress)
      : path_(path),
        tensors_(tensors),
        offsets_(offsets),
        checksums_(tensors.size()),
        meter_("converting", "B", total_bytes(tensors), progress) {}

  /// Returns the tensors' checksums.
  const std::vector<std::uint64_t>& write(std::size_t threads) {
    const std::vector<RowChunk> chunks = row_chunks(tensors_);
    in_parallel(chunks.size(), threads, [&](std::size_t i) { write(chunks[i]); });
    return checksums_;
  }

 private:
  static double total_bytes(const std::vector<WholeTensor>& tensors) {
    double bytes = 0;
    for (const WholeTensor& tensor : tensors)
      if (!tensor.is_zero()) bytes += sizeof(float) * static_cast<double>(tensor.shape.size());
    return bytes;
  }

  void write(const RowChunk& chunk) {
    const WholeTensor& tensor = tensors_[chunk.tensor];
    const std::int64_t columns = grid::whole_tensor(tensor.shape).columns;
    const grid::Hyperslabs rows = {{chunk.begin, chunk.end - chunk.begin, 0, columns}};
    std::vector<float> made;
    const float* data = tensor.data ? tensor.data + chunk.begin * columns : nullptr;
    if (!data) {
      made.resize(static_cast<std::size_t>((chunk.end - chunk.begin) * columns));
      tensor.load(chunk.begin, chunk.end, made.data());
      data = made.data();
    }
    const std::uint64_t sum = checksum(kFormatVersion, tensor.shape, DType::f32, rows, data);
    PartFile file(path_, [] {});
    file.write(rows, tensor.shape, sizeof(float), data, offsets_[chunk.tensor]);
    const std::lock_guard lock(mutex_);
    checksums_[chunk.tensor] += sum;
    meter_.update(done_ += sizeof(float) * static_cast<double>(rows.front().size()));
  }

  const std::filesystem::path path_;
  const std::vector<WholeTensor>& tensors_;
  const std::vector<std::int64_t>& offsets_;
  std::mutex mutex_;
  std::vector<std::uint64_t> checksums_;  ///< zero for zeros: a sum over elements
  Progress meter_;
  double done_ = 0;
};

}  // namespace

void write_checkpoint(const std::filesystem::path& path, const Attributes& attributes,
                      const std::string& deck, const std::vector<WholeTensor>& tensors,
                      std::FILE* progress, std::size_t threads) {
  hdf5::silence();
  std::vector<LocalTensor> described;
  for (const WholeTensor& tensor : tensors)
    described.push_back({.name = tensor.name, .shape = tensor.shape, .dtype = DType::f32});
  const std::filesystem::path target = std::filesystem::absolute(path);
  const std::filesystem::path unfinished = target.string() + ".part";
  try {
    std::filesystem::remove(unfinished);
    reserve_space(unfinished, max_file_bytes(deck, described));
    PartFile file(unfinished, [] {});
    // The structure twice: for the elements' places, and with their checksums.
    const std::vector<std::int64_t> offsets = write_metadata(
        file, attributes, deck, described, std::vector<std::uint64_t>(tensors.size()));
    ElementWriter writer(unfinished, tensors, offsets, progress);
    const std::vector<std::uint64_t>& checksums =
        writer.write(threads > 0 ? threads : usable_threads(kMaxWriters));
    const auto again = write_metadata(file, attributes, deck, described, checksums);
    TRIREME_CHECK(again == offsets, "the structure of '{}' depends on checksums", path.string());
    sync_path(unfinished);
    std::filesystem::rename(unfinished, target);
    sync_path(target.parent_path());
  } catch (const std::exception& failure) {
    std::error_code ignored;
    std::filesystem::remove(unfinished, ignored);
    if (dynamic_cast<const DataError*>(&failure)) throw;  // of a tensor's load()
    throw IoError("cannot write '{}': {}", path.string(), failure.what());
  }
}

}  // namespace trireme::checkpoint
