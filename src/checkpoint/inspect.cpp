#include "checkpoint/file.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "core/error.hpp"
#include "core/files.hpp"
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

}  // namespace trireme::checkpoint
