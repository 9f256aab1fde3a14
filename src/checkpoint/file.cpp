// Checkpoint files in one process without MPI: describing and verifying them, and writing whole
// tensors on several threads.
#include "checkpoint/file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "checkpoint/elements.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "core/system/parallel.hpp"
#include "core/text.hpp"

namespace trireme::checkpoint {
namespace {

/// A tensor of the file with the sum of squares of its elements, accumulated in double.
struct Row {
  TensorInfo info;
  double sum_of_squares = 0;
};

double bytes_of(const TensorInfo& info) {
  return static_cast<double>(info.shape.size()) * static_cast<double>(size_of(info.dtype));
}

/// A meter of the bytes of all tensors.
Progress reading_meter(const Header& header, std::FILE* progress) {
  double bytes = 0;
  for (const TensorInfo& info : header.tensors) bytes += bytes_of(info);
  return {"verifying", "B", bytes, progress};
}

double sum_of_squares(const Reader& reader, const TensorInfo& info) {
  return dispatch(info.dtype, [&](auto zero) {
    using Real = decltype(zero);
    double sum = 0;
    const std::uint64_t found = reader.stream(info, [&](const void* data, std::int64_t count) {
      for (const double element : std::span(static_cast<const Real*>(data), count))
        sum += element * element;
    });
    if (found != info.checksum)
      throw DataError("'{}': tensor '{}' is damaged: its checksum does not match",
                      reader.header().path.string(), info.name);
    return sum;
  });
}

std::string to_text(const Attribute& attribute) {
  if (const auto* number = std::get_if<std::int64_t>(&attribute)) return std::to_string(*number);
  if (const auto* real = std::get_if<double>(&attribute)) return fmt::format("{}", *real);
  return std::get<std::string>(attribute);
}

std::string as_json(const std::string& file, const Header& header, const std::vector<Row>& rows) {
  nlohmann::ordered_json root;
  root["file"] = file;
  root["attributes"] = nlohmann::ordered_json::object();
  for (const auto& [name, value] : header.attributes)
    std::visit([&, &key = name](const auto& held) { root["attributes"][key] = held; }, value);
  root["tensors"] = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    nlohmann::ordered_json tensor;
    tensor["name"] = row.info.name;
    tensor["shape"] = nlohmann::ordered_json::array();
    for (int axis = 0; axis < row.info.shape.rank(); ++axis)
      tensor["shape"].push_back(row.info.shape[axis]);
    tensor["dtype"] = name_of(row.info.dtype);
    tensor["checksum"] = fmt::format("{:016x}", row.info.checksum);
    tensor["sum_of_squares"] = row.sum_of_squares;
    root["tensors"].push_back(tensor);
  }
  root["deck"] = header.deck;
  using Replace = nlohmann::ordered_json::error_handler_t;
  return root.dump(2, ' ', false, Replace::replace) + "\n";
}

std::string as_text(const std::string& file, const Header& header, const std::vector<Row>& rows) {
  std::int64_t elements = 0;
  double bytes = 0;
  std::size_t widest = 0;
  for (const Row& row : rows) {
    elements += row.info.shape.size();
    bytes +=
        static_cast<double>(row.info.shape.size()) * static_cast<double>(size_of(row.info.dtype));
    widest = std::max(widest, row.info.name.size());
  }
  std::string text = fmt::format("{}\n{} tensors, {} elements, {}; every checksum is right\n\n",
                                 file, rows.size(), elements, human_bytes(bytes));
  for (const auto& [name, value] : header.attributes)
    text += fmt::format("  {:<24} {}\n", name, to_text(value));
  text += fmt::format("\n  {:<{}}  {:<16} dtype  {:<16}  sum of squares\n", "tensor", widest,
                      "shape", "checksum");
  for (const Row& row : rows)
    text += fmt::format("  {:<{}}  {:<16} {:<5}  {:016x}  {:.9g}\n", row.info.name, widest,
                        to_string(row.info.shape), name_of(row.info.dtype), row.info.checksum,
                        row.sum_of_squares);
  return text + "\ndeck:\n" + header.deck;
}

}  // namespace

Verified verify(const std::filesystem::path& path, std::FILE* progress) {
  const Reader reader(path);
  Progress meter = reading_meter(reader.header(), progress);
  Verified verified{.structure = reader.header().version() >= 2};
  std::vector<std::string> damaged;
  for (const TensorInfo& info : reader.header().tensors) {
    bool right = false;
    try {
      right = reader.stream(info, [](const void*, std::int64_t) {}) == info.checksum;
    } catch (const DataError&) {  // compressed elements that cannot be decompressed
    }
    if (!right) damaged.push_back("'" + info.name + "'");
    ++verified.tensors;
    verified.bytes += bytes_of(info);
    meter.update(verified.bytes);
  }
  if (!damaged.empty())
    throw DataError("'{}': {} of {} tensors are damaged, their checksums do not match: {}",
                    path.string(), damaged.size(), verified.tensors, fmt::join(damaged, ", "));
  return verified;
}

std::string describe(const std::filesystem::path& path, bool json, std::FILE* progress) {
  const Reader reader(path);
  Progress meter = reading_meter(reader.header(), progress);
  double bytes = 0;
  std::vector<Row> rows;
  for (const TensorInfo& info : reader.header().tensors) {
    rows.push_back({info, sum_of_squares(reader, info)});
    meter.update(bytes += bytes_of(info));
  }
  return json ? as_json(path.string(), reader.header(), rows)
              : as_text(path.string(), reader.header(), rows);
}

// ---- write_checkpoint()

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
