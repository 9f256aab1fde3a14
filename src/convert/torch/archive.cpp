#include "convert/torch/archive.hpp"

#include <fmt/format.h>

#include <cstring>

#include "core/error.hpp"
#include "core/tensor.hpp"

namespace trireme::convert::torch {
namespace {

// Keeps products of extents and strides within 64 bits.
constexpr std::int64_t kMaxElements = std::int64_t{1} << 44;

template <typename T>
T number_at(std::string_view bytes, std::size_t at) {
  T value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

/// An entry of a zip archive's central directory.
struct ZipEntry {
  std::string name;
  bool stored = true;
  std::uint64_t size = 0;
  std::uint64_t header = 0;  ///< offset of its local header
};

/// Replaces sizes and offsets of 2^32 - 1 by those of the zip64 extra field.
void apply_zip64(std::string_view extra, std::uint64_t compressed, ZipEntry& entry) {
  constexpr std::uint64_t kInField = 0xFFFFFFFF;
  for (std::size_t at = 0; at + 4 <= extra.size();) {
    const auto id = number_at<std::uint16_t>(extra, at);
    const std::size_t end = at + 4 + number_at<std::uint16_t>(extra, at + 2);
    at += 4;
    if (end > extra.size()) return;
    const auto next = [&](std::uint64_t& value) {
      if (value != kInField || at + 8 > end) return;
      value = number_at<std::uint64_t>(extra, at);
      at += 8;
    };
    if (id == 1) {
      next(entry.size);
      next(compressed);
      next(entry.header);
      return;
    }
    at = end;
  }
}

/// The directory of a zip archive. Throws DataError, with `where` in front.
std::vector<ZipEntry> read_directory(std::string_view zip, const std::string& where) {
  constexpr std::size_t kEndBytes = 22, kEntryBytes = 46;
  const std::size_t end = zip.rfind("PK\x05\x06");
  if (end == std::string_view::npos || end + kEndBytes > zip.size())
    throw DataError("{} is truncated: its directory is missing", where);
  std::uint64_t count = number_at<std::uint16_t>(zip, end + 10);
  std::uint64_t at = number_at<std::uint32_t>(zip, end + 16);
  const std::size_t locator = end >= 20 ? end - 20 : 0;
  if (zip.substr(locator, 4) == std::string_view("PK\x06\x07", 4)) {
    const auto record = number_at<std::uint64_t>(zip, locator + 8);
    if (zip.size() < 56 || record > zip.size() - 56)
      throw DataError("{} is damaged: its zip64 directory is outside the file", where);
    count = number_at<std::uint64_t>(zip, static_cast<std::size_t>(record) + 32);
    at = number_at<std::uint64_t>(zip, static_cast<std::size_t>(record) + 48);
  }
  std::vector<ZipEntry> entries;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (at > zip.size() || zip.size() - at < kEntryBytes || zip.substr(at, 4) != "PK\x01\x02")
      throw DataError("{} is damaged: entry {} of its directory is malformed", where, i);
    const auto begin = static_cast<std::size_t>(at);
    const std::size_t name = number_at<std::uint16_t>(zip, begin + 28);
    const std::size_t extra = number_at<std::uint16_t>(zip, begin + 30);
    const std::size_t comment = number_at<std::uint16_t>(zip, begin + 32);
    if (zip.size() - begin - kEntryBytes < name + extra + comment)
      throw DataError("{} is damaged: entry {} of its directory is truncated", where, i);
    ZipEntry entry{.name = std::string(zip.substr(begin + kEntryBytes, name)),
                   .stored = number_at<std::uint16_t>(zip, begin + 10) == 0,
                   .size = number_at<std::uint32_t>(zip, begin + 24),
                   .header = number_at<std::uint32_t>(zip, begin + 42)};
    apply_zip64(zip.substr(begin + kEntryBytes + name, extra),
                number_at<std::uint32_t>(zip, begin + 20), entry);
    entries.push_back(std::move(entry));
    at = begin + kEntryBytes + name + extra + comment;
  }
  return entries;
}

/// The bytes of `entry`. Throws DataError, with `where` in front.
std::string_view bytes_of(std::string_view zip, const ZipEntry& entry, const std::string& where) {
  constexpr std::size_t kHeaderBytes = 30;
  if (!entry.stored)
    throw DataError("{}: '{}' is compressed, as torch.save() never writes it", where, entry.name);
  if (entry.header > zip.size() || zip.size() - entry.header < kHeaderBytes)
    throw DataError("{} is damaged: '{}' is outside the file", where, entry.name);
  const auto header = static_cast<std::size_t>(entry.header);
  const std::size_t begin = header + kHeaderBytes + number_at<std::uint16_t>(zip, header + 26) +
                            number_at<std::uint16_t>(zip, header + 28);
  if (begin > zip.size() || zip.size() - begin < entry.size)
    throw DataError("{} is truncated: '{}' ends after the file", where, entry.name);
  return zip.substr(begin, static_cast<std::size_t>(entry.size));
}

std::optional<DType> dtype_of_storage(std::string_view type) {
  if (type == "torch.FloatStorage") return DType::f32;
  if (type == "torch.HalfStorage") return DType::f16;
  if (type == "torch.BFloat16Storage") return DType::bf16;
  if (type == "torch.DoubleStorage") return DType::f64;
  return std::nullopt;
}

std::size_t element_bytes(std::string_view type) {
  if (const auto dtype = dtype_of_storage(type)) return size_of(*dtype);
  if (type == "torch.LongStorage") return 8;
  if (type == "torch.IntStorage") return 4;
  if (type == "torch.ShortStorage") return 2;
  return 1;  // bytes and booleans
}

std::optional<std::vector<std::int64_t>> sizes_of(const Value& value) {
  // torch.Size is a call with one tuple.
  const Value& list =
      value.is(Value::Kind::object) && value.items.size() == 1 ? *value.items[0] : value;
  if (!list.is(Value::Kind::list)) return std::nullopt;
  std::vector<std::int64_t> sizes;
  for (const Value* item : list.items) {
    if (!item->is(Value::Kind::integer) || item->integer < 0 || item->integer > kMaxElements)
      return std::nullopt;
    sizes.push_back(item->integer);
  }
  return sizes;
}

}  // namespace

const std::vector<std::pair<const Value*, const Value*>>& Value::fields() const {
  static const std::vector<std::pair<const Value*, const Value*>> kNone;
  if (kind == Kind::dict) return entries;
  if (kind != Kind::object) return kNone;
  // A subclass of dict has entries; other objects, such as a Namespace, have attributes.
  if (!entries.empty() || class_name() == "collections.OrderedDict") return entries;
  if (state && state->kind == Kind::dict) return state->entries;
  return kNone;
}

const Value* Value::find(std::string_view key) const {
  for (const auto& [name, value] : fields())
    if (name->kind == Kind::text && name->text == key) return value;
  return nullptr;
}

std::string_view Value::class_name() const {
  return kind == Kind::object && callee && callee->kind == Kind::global
             ? std::string_view(callee->text)
             : std::string_view();
}

std::int64_t Tensor::elements() const {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

std::optional<Tensor> as_tensor(const Value& value) {
  const bool is_parameter =
      value.class_name() == "torch._utils._rebuild_parameter" && !value.items.empty();
  const Value& data = is_parameter ? *value.items[0] : value;
  const std::string_view name = data.class_name();
  if (name != "torch._utils._rebuild_tensor_v2" && name != "torch._utils._rebuild_tensor")
    return std::nullopt;
  const auto& items = data.items;
  if (items.size() < 4 || !items[0]->is(Value::Kind::persistent)) return std::nullopt;
  const auto& id = items[0]->items;  // ("storage", type, key, location, elements, ...)
  const auto shape = sizes_of(*items[2]), strides = sizes_of(*items[3]);
  const bool complete = id.size() >= 5 && id[1]->is(Value::Kind::global) &&
                        items[1]->is(Value::Kind::integer) && shape && strides &&
                        shape->size() == strides->size();
  if (!complete || items[1]->integer < 0 || items[1]->integer > kMaxElements) return std::nullopt;
  std::int64_t elements = 1;
  for (const std::int64_t extent : *shape) {
    if (extent > 0 && elements > kMaxElements / extent) return std::nullopt;
    elements *= extent;
  }
  return Tensor{.storage = id[2]->text,
                .dtype = dtype_of_storage(id[1]->text),
                .type = id[1]->text,
                .offset = items[1]->integer,
                .shape = *shape,
                .strides = *strides};
}

Archive::Archive(const std::filesystem::path& path) : path_(path), file_(path) {
  open({reinterpret_cast<const char*>(file_.data()), file_.size()});
}

Archive::Archive(const std::filesystem::path& path, std::uint64_t offset, std::uint64_t length)
    : path_(path), file_(path) {
  if (offset > file_.size() || file_.size() - offset < length)
    throw DataError("'{}' is truncated: bytes {} to {} are outside the file", path.string(), offset,
                    offset + length);
  open({reinterpret_cast<const char*>(file_.data()) + offset, static_cast<std::size_t>(length)});
}

void Archive::open(std::string_view bytes) {
  if (bytes.starts_with("PK"))
    open_zip(bytes);
  else
    open_legacy(bytes);
}

void Archive::open_zip(std::string_view bytes) {
  const std::string where = fmt::format("'{}'", path_.string());
  constexpr std::string_view kPickle = "/data.pkl", kData = "/data/";
  for (const ZipEntry& entry : read_directory(bytes, where)) {
    const std::size_t data = entry.name.find(kData);
    if (entry.name.ends_with(kPickle) && !pickle_)
      pickle_ = std::make_unique<Pickle>(bytes_of(bytes, entry, where), path_.string());
    else if (data != std::string::npos)
      storages_[entry.name.substr(data + kData.size())] = bytes_of(bytes, entry, where);
    else if (entry.name.ends_with("/byteorder") && bytes_of(bytes, entry, where) != "little")
      throw DataError("{} has big-endian numbers", where);
  }
  if (!pickle_) throw DataError("{} is no file of torch.save(): it has no data.pkl", where);
}

void Archive::open_legacy(std::string_view bytes) {
  const std::string name = path_.string();
  // The little-endian bytes of torch.serialization.MAGIC_NUMBER.
  constexpr std::string_view kMagic("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 12);
  if (bytes.substr(0, 64).find(kMagic) == std::string_view::npos)
    throw DataError("'{}' is no file of torch.save()", name);
  std::size_t used = 0;
  for (int i = 0; i < 3; ++i) {  // magic number, version, system
    Pickle(bytes, name, &used);
    bytes.remove_prefix(used);
  }
  pickle_ = std::make_unique<Pickle>(bytes, name, &used);
  bytes.remove_prefix(used);
  const Pickle keys(bytes, name, &used);
  bytes.remove_prefix(used);
  // The pickle of the object names the type of each storage.
  std::map<std::string, std::size_t> widths;
  for (const Value& value : pickle_->values())
    if (value.is(Value::Kind::persistent) && value.items.size() >= 5)
      widths[value.items[2]->text] = element_bytes(value.items[1]->text);
  for (const Value* key : keys.root().items) {
    if (bytes.size() < 8) throw DataError("'{}' is truncated", name);
    const auto elements = number_at<std::uint64_t>(bytes, 0);
    bytes.remove_prefix(8);
    const auto width = widths.find(key->text);
    if (width == widths.end() || elements > bytes.size() / width->second)
      throw DataError("'{}' is truncated: storage '{}' has {} elements", name, key->text, elements);
    storages_[key->text] = bytes.substr(0, static_cast<std::size_t>(elements) * width->second);
    bytes.remove_prefix(static_cast<std::size_t>(elements) * width->second);
  }
}

std::vector<float> Archive::read(const Tensor& tensor) const {
  const std::string where = fmt::format("'{}'", path_.string());
  if (!tensor.dtype)
    throw DataError("{}: a tensor of {} cannot be read as weights", where, tensor.type);
  const auto found = storages_.find(tensor.storage);
  if (found == storages_.end())
    throw DataError("{} is damaged: storage '{}' is missing", where, tensor.storage);
  const std::string_view bytes = found->second;
  const std::size_t width = size_of(*tensor.dtype);
  const auto available = static_cast<std::int64_t>(bytes.size() / width);
  const std::int64_t count = tensor.elements();
  if (count == 0) return {};
  std::int64_t last = tensor.offset, dense = 1;
  bool contiguous = true;
  for (std::size_t i = tensor.shape.size(); i > 0; --i) {
    const std::int64_t extent = tensor.shape[i - 1], stride = tensor.strides[i - 1];
    if (extent > 1 && stride > available)
      throw DataError("{}: a tensor is outside its storage '{}'", where, tensor.storage);
    if (extent > 1) last += (extent - 1) * stride;
    contiguous = contiguous && (extent == 1 || stride == dense);
    dense *= extent;
    if (last > available) break;
  }
  if (last >= available)
    throw DataError("{}: a tensor of {} elements is outside its storage '{}' of {}", where, count,
                    tensor.storage, available);
  // Storage bytes may begin anywhere in the file: copy to aligned memory first.
  std::vector<std::byte> elements(static_cast<std::size_t>(count) * width);
  const char* from = bytes.data() + static_cast<std::size_t>(tensor.offset) * width;
  if (contiguous) {
    std::memcpy(elements.data(), from, elements.size());
  } else {
    // A view may repeat elements (stride 0): no more of them than a checkpoint has.
    if (count > available) throw DataError("{}: a tensor repeats its elements", where);
    std::vector<std::int64_t> index(tensor.shape.size(), 0);
    for (std::int64_t i = 0; i < count; ++i) {
      std::int64_t at = 0;
      for (std::size_t axis = 0; axis < index.size(); ++axis)
        at += index[axis] * tensor.strides[axis];
      std::memcpy(elements.data() + static_cast<std::size_t>(i) * width,
                  from + static_cast<std::size_t>(at) * width, width);
      for (std::size_t axis = index.size(); axis > 0; --axis) {
        if (++index[axis - 1] < tensor.shape[axis - 1]) break;
        index[axis - 1] = 0;
      }
    }
  }
  std::vector<float> values(static_cast<std::size_t>(count));
  if (*tensor.dtype == DType::f32)
    std::memcpy(values.data(), elements.data(), elements.size());  // bit for bit
  else
    convert_to_float(elements.data(), values.size(), *tensor.dtype, values.data());
  return values;
}

}  // namespace trireme::convert::torch
