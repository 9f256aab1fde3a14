#include "data/numpy.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme::data {
namespace {

constexpr std::string_view kNumpyMagic = "\x93NUMPY";

struct NumpyType {
  IntegerType type;
  std::string_view descriptor;
  std::int64_t bytes;
};

constexpr std::array<NumpyType, 6> kNumpyTypes = {{{IntegerType::int32, "<i4", 4},
                                                   {IntegerType::int64, "<i8", 8},
                                                   {IntegerType::uint32, "<u4", 4},
                                                   {IntegerType::int16, "<i2", 2},
                                                   {IntegerType::uint64, "<u8", 8},
                                                   {IntegerType::uint16, "<u2", 2}}};

const NumpyType& row_of(IntegerType type) { return kNumpyTypes[static_cast<std::size_t>(type)]; }

template <typename T>
constexpr IntegerType type_of() {
  if constexpr (std::is_same_v<T, std::int16_t>) return IntegerType::int16;
  if constexpr (std::is_same_v<T, std::int32_t>) return IntegerType::int32;
  if constexpr (std::is_same_v<T, std::uint32_t>) return IntegerType::uint32;
  if constexpr (std::is_same_v<T, std::uint64_t>) return IntegerType::uint64;
  return IntegerType::int64;
}

// The text after `'key': ` in the dictionary of a header; empty when there is no such key.
std::string_view value_of(std::string_view header, std::string_view key) {
  const std::size_t at = header.find(fmt::format("'{}':", key));
  if (at == std::string_view::npos) return {};
  header.remove_prefix(at + key.size() + 3);
  header.remove_prefix(std::min(header.find_first_not_of(' '), header.size()));
  return header;
}

// "(21, 2)", "(21,)": one or two extents; nothing for other texts.
std::optional<std::vector<std::int64_t>> parse_shape(std::string_view text) {
  if (!text.starts_with('(')) return std::nullopt;
  text = text.substr(1, text.find(')') - 1);
  std::vector<std::int64_t> shape;
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    if (text.empty()) break;
    std::int64_t extent = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), extent);
    if (error != std::errc{} || extent < 0) return std::nullopt;
    shape.push_back(extent);
    text.remove_prefix(end - text.data());
    if (text.starts_with(',')) text.remove_prefix(1);
  }
  if (shape.empty() || shape.size() > 2) return std::nullopt;
  return shape;
}

// Bytes before the dictionary and bytes of the dictionary.
std::pair<std::size_t, std::size_t> header_extent(std::string_view content,
                                                  const std::string& name) {
  if (content.size() < 10 || !content.starts_with(kNumpyMagic))
    throw DataError("'{}': not a .npy file", name);
  const auto byte = [&](std::size_t at) {
    return std::size_t{static_cast<unsigned char>(content[at])};
  };
  std::size_t start = 10, length = byte(8) | byte(9) << 8;
  if (byte(6) > 1 && content.size() >= 12) {  // from version 2 on the length has four bytes
    start = 12;
    length |= byte(10) << 16 | byte(11) << 24;
  }
  if (length > content.size() - start)
    throw DataError("'{}': truncated: its header needs {} bytes, the file has {}", name,
                    start + length, content.size());
  return {start, length};
}

}  // namespace

template <typename T>
NpyArray::NpyArray(std::vector<T> values) : type_(type_of<T>()), shape_{std::ssize(values)} {
  const auto owner = std::make_shared<const std::vector<T>>(std::move(values));
  data_ = reinterpret_cast<const std::byte*>(owner->data());
  owner_ = owner;
}

template <typename T>
NpyArray::NpyArray(std::vector<T> values, std::int64_t columns) : NpyArray(std::move(values)) {
  TRIREME_CHECK(columns > 0 && shape_[0] % columns == 0, "{} elements in {} columns", shape_[0],
                columns);
  shape_ = {shape_[0] / columns, columns};
}

template NpyArray::NpyArray(std::vector<std::int16_t>);
template NpyArray::NpyArray(std::vector<std::int32_t>);
template NpyArray::NpyArray(std::vector<std::int64_t>);
template NpyArray::NpyArray(std::vector<std::uint32_t>);
template NpyArray::NpyArray(std::vector<std::uint64_t>);
template NpyArray::NpyArray(std::vector<std::int32_t>, std::int64_t);
template NpyArray::NpyArray(std::vector<std::int64_t>, std::int64_t);
template NpyArray::NpyArray(std::vector<std::uint32_t>, std::int64_t);
template NpyArray::NpyArray(std::vector<std::uint64_t>, std::int64_t);

NpyArray NpyArray::map(const std::filesystem::path& path) {
  const std::string name = path.string();
  const auto file = std::make_shared<const MappedFile>(path);
  const std::string_view content(reinterpret_cast<const char*>(file->data()), file->size());
  const auto [start, length] = header_extent(content, name);
  const std::string_view header = content.substr(start, length);

  NpyArray array;
  const std::string_view descriptor = value_of(header, "descr").substr(0, 5);
  const auto* type = std::find_if(
      kNumpyTypes.begin(), kNumpyTypes.end(),
      [&](const NumpyType& row) { return descriptor == fmt::format("'{}'", row.descriptor); });
  if (type == kNumpyTypes.end())
    throw DataError(
        "'{}': elements of type {}; expected '<i2', '<i4', '<i8', '<u2', '<u4' or '<u8'", name,
        descriptor);
  const auto shape = parse_shape(value_of(header, "shape"));
  const bool fortran = value_of(header, "fortran_order").starts_with("True");
  if (!shape || (fortran && shape->size() > 1))
    throw DataError("'{}': not a row-major array of one or two axes", name);

  const std::size_t data_bytes = content.size() - start - length;
  std::int64_t promised = type->bytes;
  for (const std::int64_t extent : *shape)
    if (__builtin_mul_overflow(promised, extent, &promised))
      throw DataError("'{}': its header promises more elements than any file holds", name);
  if (static_cast<std::uint64_t>(promised) != data_bytes)
    throw DataError("'{}': its header promises {} bytes of data, the file has {}", name, promised,
                    data_bytes);
  array.type_ = type->type;
  array.shape_ = *shape;
  array.data_ = file->data() + start + length;
  array.owner_ = file;
  return array;
}

std::string NpyArray::serialize() const {
  const std::string shape = shape_.size() == 1 ? fmt::format("({},)", shape_[0])
                                               : fmt::format("({}, {})", rows(), columns());
  std::string dictionary = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}",
                                       row_of(type_).descriptor, shape);
  // Magic 6, version 2, length 2; the dictionary is padded so that the data begins at a multiple
  // of 64, and ends with a line feed.
  const std::size_t unpadded = 10 + dictionary.size() + 1;
  dictionary.append((64 - unpadded % 64) % 64, ' ').push_back('\n');
  std::string bytes(kNumpyMagic);
  bytes += {'\1', '\0', static_cast<char>(dictionary.size() & 0xFF),
            static_cast<char>(dictionary.size() >> 8)};
  bytes += dictionary;
  const auto data_bytes = static_cast<std::size_t>(rows() * columns() * row_of(type_).bytes);
  if (data_bytes > 0) bytes.append(reinterpret_cast<const char*>(data_), data_bytes);
  return bytes;
}

std::uint64_t NumpyRandom::interval(std::uint64_t max) {
  if (max == 0) return 0;
  const std::uint64_t mask = std::numeric_limits<std::uint64_t>::max() >> std::countl_zero(max);
  std::uint64_t value;
  do {
    value = generator_();
    if (max > std::numeric_limits<std::uint32_t>::max()) value = value << 32 | generator_();
    value &= mask;
  } while (value > max);
  return value;
}

}  // namespace trireme::data
