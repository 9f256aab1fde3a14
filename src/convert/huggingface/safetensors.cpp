#include "convert/huggingface/safetensors.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "core/dtype.hpp"
#include "core/error.hpp"

namespace trireme::convert::huggingface {
namespace {

static_assert(std::endian::native == std::endian::little, "elements are copied as they are");

constexpr std::size_t kLengthBytes = 8;

// The limit of the safetensors library.
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

// Keeps products of extents and bytes within 64 bits.
constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 48;

/// Bytes of an element of any type that the format has; 0 for a type it does not have.
std::uint64_t element_bytes(const std::string& dtype) {
  static const std::vector<std::pair<std::string_view, int>> kTypes = {
      {"F64", 8}, {"F32", 4}, {"F16", 2},  {"BF16", 2}, {"I64", 8}, {"I32", 4}, {"I16", 2},
      {"I8", 1},  {"U8", 1},  {"BOOL", 1}, {"U64", 8},  {"U32", 4}, {"U16", 2}};
  const auto found = std::find_if(kTypes.begin(), kTypes.end(),
                                  [&](const auto& type) { return type.first == dtype; });
  return found == kTypes.end() ? 0 : static_cast<std::uint64_t>(found->second);
}

std::optional<DType> read_as(const std::string& dtype) {
  if (dtype == "F32") return DType::f32;
  if (dtype == "F16") return DType::f16;
  if (dtype == "BF16") return DType::bf16;
  if (dtype == "F64") return DType::f64;
  return std::nullopt;
}

/// One entry of the header. Throws DataError, with `where` in front, when it is malformed.
TensorEntry read_entry(const std::string& name, const nlohmann::json& json,
                       const std::string& where) {
  const auto fail = [&](const char* what) {
    throw DataError("{}: tensor '{}' {}", where, name, what);
  };
  if (!json.is_object() || !json.contains("dtype") || !json["dtype"].is_string() ||
      !json.contains("shape") || !json["shape"].is_array() || !json.contains("data_offsets") ||
      !json["data_offsets"].is_array() || json["data_offsets"].size() != 2)
    fail("lacks dtype, shape or two data_offsets");
  TensorEntry entry{.name = name, .dtype = json["dtype"].get<std::string>()};
  std::uint64_t elements = 1;
  for (const nlohmann::json& extent : json["shape"]) {
    if (!extent.is_number_unsigned() || extent.get<std::uint64_t>() > kMaxElements)
      fail("has a shape that is no list of sizes");
    entry.shape.push_back(extent.get<std::int64_t>());
    // Not the product itself, which may leave 64 bits.
    const auto size = extent.get<std::uint64_t>();
    if (size > 0 && elements > kMaxElements / size) fail("has a shape that is too large");
    elements *= size;
  }
  for (const nlohmann::json& offset : json["data_offsets"])
    if (!offset.is_number_unsigned()) fail("has data_offsets that are no sizes");
  entry.begin = json["data_offsets"][0].get<std::uint64_t>();
  entry.end = json["data_offsets"][1].get<std::uint64_t>();
  const std::uint64_t bytes = element_bytes(entry.dtype);
  if (bytes == 0)
    throw DataError("{}: tensor '{}' has the unknown type '{}'", where, name, entry.dtype);
  if (entry.end < entry.begin || entry.end - entry.begin != elements * bytes)
    throw DataError("{}: tensor '{}' {} {} takes {} bytes, but its data_offsets are {} and {}",
                    where, name, entry.dtype, to_string(entry.shape), elements * bytes, entry.begin,
                    entry.end);
  return entry;
}

}  // namespace

std::int64_t TensorEntry::elements() const {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

std::string to_string(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// ---------------------------------------------------------------------------- reading

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path) : path_(path), file_(path) {
  const std::string where = fmt::format("'{}'", path.string());
  std::uint64_t length = 0;
  if (file_.size() < kLengthBytes)
    throw DataError("{} is not a safetensors file: it has {} bytes", where, file_.size());
  std::memcpy(&length, file_.data(), kLengthBytes);
  if (length > kMaxHeaderBytes)
    throw DataError(
        "{} is not a safetensors file: its first eight bytes ask for a header of {} "
        "bytes",
        where, length);
  if (length > file_.size() - kLengthBytes)
    throw DataError("{} is truncated: its header takes {} bytes, of which {} are there", where,
                    length, file_.size() - kLengthBytes);
  data_at_ = kLengthBytes + static_cast<std::size_t>(length);
  const auto* text = reinterpret_cast<const char*>(file_.data()) + kLengthBytes;
  const nlohmann::json header =
      nlohmann::json::parse(text, text + length, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object())
    throw DataError("{} is not a safetensors file: its header is no JSON object", where);
  for (const auto& [name, json] : header.items())
    if (name != "__metadata__") entries_.push_back(read_entry(name, json, where));

  std::sort(entries_.begin(), entries_.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t end = 0;
  for (const TensorEntry& entry : entries_) {
    if (entry.begin != end)
      throw DataError("{}: tensor '{}' begins at byte {}, but {} ends the one before it", where,
                      entry.name, entry.begin, end);
    end = entry.end;
  }
  const std::uint64_t there = file_.size() - data_at_;
  if (there < end)
    throw DataError("{} is truncated: its tensors take {} bytes, of which {} are there", where, end,
                    there);
  if (there > end) throw DataError("{} has {} bytes after its last tensor", where, there - end);
}

const TensorEntry* SafetensorsReader::find(const std::string& name) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const TensorEntry& entry) { return entry.name == name; });
  return found == entries_.end() ? nullptr : &*found;
}

std::vector<float> SafetensorsReader::read(const TensorEntry& entry) const {
  const auto dtype = read_as(entry.dtype);
  if (!dtype)
    throw DataError("'{}': tensor '{}' is {}; weights are F32, F16, BF16 or F64", path_.string(),
                    entry.name, entry.dtype);
  std::vector<float> values(static_cast<std::size_t>(entry.elements()));
  // A tensor may begin at any byte: its bytes are copied to aligned memory.
  std::vector<std::byte> bytes(static_cast<std::size_t>(entry.end - entry.begin));
  std::memcpy(bytes.data(), file_.data() + data_at_ + entry.begin, bytes.size());
  if (*dtype == DType::f32)
    std::memcpy(values.data(), bytes.data(), bytes.size());  // bit for bit, NaN included
  else
    convert_to_float(bytes.data(), values.size(), *dtype, values.data());
  return values;
}

// ---------------------------------------------------------------------------- writing

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<Tensor> tensors)
    : path_(path), unfinished_{path.string() + ".part"}, tensors_(std::move(tensors)) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};
  std::uint64_t at = 0;
  for (const Tensor& tensor : tensors_) {
    const TensorEntry entry{.shape = tensor.shape};
    const std::uint64_t end = at + static_cast<std::uint64_t>(entry.elements()) * sizeof(float);
    header[tensor.name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  const std::uint64_t length = text.size();
  file_.open(unfinished_.path, std::ios::binary | std::ios::trunc);
  file_.write(reinterpret_cast<const char*>(&length), kLengthBytes);
  file_.write(text.data(), static_cast<std::streamsize>(text.size()));
  check();
}

SafetensorsWriter::Unfinished::~Unfinished() {
  std::error_code ignored;
  if (!path.empty()) std::filesystem::remove(path, ignored);
}

void SafetensorsWriter::check() const {
  if (!file_)
    throw IoError("cannot write '{}': {}", unfinished_.path.string(), std::strerror(errno));
}

void SafetensorsWriter::write(std::span<const float> elements) {
  TRIREME_CHECK(written_ < tensors_.size(), "all tensors of the header are written");
  const TensorEntry entry{.shape = tensors_[written_].shape};
  TRIREME_CHECK(entry.elements() == static_cast<std::int64_t>(elements.size()),
                "'{}' has {} elements, not {}", tensors_[written_].name, entry.elements(),
                elements.size());
  file_.write(reinterpret_cast<const char*>(elements.data()),
              static_cast<std::streamsize>(elements.size_bytes()));
  check();
  ++written_;
}

void SafetensorsWriter::finish() {
  TRIREME_CHECK(written_ == tensors_.size(), "{} tensors of {} are written", written_,
                tensors_.size());
  file_.close();
  check();
  sync_path(unfinished_.path);
  std::error_code error;
  std::filesystem::rename(unfinished_.path, path_, error);
  if (error)
    throw IoError("cannot rename '{}' to '{}': {}", unfinished_.path.string(), path_.string(),
                  error.message());
  unfinished_.path.clear();
  sync_path(path_.has_parent_path() ? path_.parent_path() : std::filesystem::path("."));
}

}  // namespace trireme::convert::huggingface
