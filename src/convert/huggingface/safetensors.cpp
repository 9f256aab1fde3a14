#include "convert/huggingface/safetensors.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "core/error.hpp"
#include "core/files.hpp"
#include "core/tensor.hpp"

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

const char* format_name(DType dtype) {
  return dtype == DType::bf16 ? "BF16" : dtype == DType::f16 ? "F16" : "F32";
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
  std::vector<float> values(static_cast<std::size_t>(entry.elements()));
  read(entry, 0, values);
  return values;
}

void SafetensorsReader::read(const TensorEntry& entry, std::int64_t first,
                             std::span<float> out) const {
  const auto dtype = read_as(entry.dtype);
  if (!dtype)
    throw DataError("'{}': tensor '{}' is {}; weights are F32, F16, BF16 or F64", path_.string(),
                    entry.name, entry.dtype);
  TRIREME_CHECK(first >= 0 && first + std::ssize(out) <= entry.elements(),
                "'{}' has {} elements, not {}", entry.name, entry.elements(),
                first + std::ssize(out));
  const std::size_t width = size_of(*dtype);
  const std::byte* from =
      file_.data() + data_at_ + entry.begin + static_cast<std::size_t>(first) * width;
  if (*dtype == DType::f32) {
    std::memcpy(out.data(), from, out.size_bytes());  // bit for bit, NaN included
    return;
  }
  // A tensor may begin at any byte: its bytes are copied to aligned memory, in pieces that stay in
  // the cache and that convert_to_float() does not divide among further threads.
  constexpr std::size_t kPiece = 1 << 12;
  alignas(8) std::array<std::byte, kPiece * sizeof(double)> piece;
  for (std::size_t i = 0; i < out.size(); i += kPiece) {
    const std::size_t count = std::min(kPiece, out.size() - i);
    std::memcpy(piece.data(), from + i * width, count * width);
    convert_to_float(piece.data(), count, *dtype, out.data() + i);
  }
}

// ---------------------------------------------------------------------------- writing

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<Tensor> tensors,
                                     DType dtype)
    : path_(path),
      unfinished_{path.string() + ".part"},
      tensors_(std::move(tensors)),
      dtype_(dtype) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};
  std::uint64_t at = 0;
  for (const Tensor& tensor : tensors_) {
    const TensorEntry entry{.shape = tensor.shape};
    const std::uint64_t end = at + static_cast<std::uint64_t>(entry.elements()) * size_of(dtype);
    header[tensor.name] = {
        {"dtype", format_name(dtype)}, {"shape", tensor.shape}, {"data_offsets", {at, end}}};
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
  std::vector<std::uint16_t> rounded;
  const void* data = elements.data();
  if (dtype_ != DType::f32) {
    const float limit = dtype_ == DType::f16 ? 65520.0f : 0x1.FFp127f;  // rounds to infinity
    const auto overflows = [&](float value) {
      return std::isfinite(value) && std::abs(value) >= limit;
    };
    const auto bad = std::ranges::find_if(elements, overflows);
    if (bad != elements.end())
      throw DataError(
          "'{}': tensor '{}' has {} at element {}, which {} cannot hold (--dtype fp32 can)",
          path_.string(), tensors_[written_].name, *bad, bad - elements.begin(), name_of(dtype_));
    rounded.resize(elements.size());
    convert_from_float(elements.data(), elements.size(), dtype_, rounded.data());
    data = rounded.data();
  }
  file_.write(static_cast<const char*>(data),
              static_cast<std::streamsize>(elements.size() * size_of(dtype_)));
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

// ---------------------------------------------------------------------------- folders

namespace {

namespace fs = std::filesystem;

constexpr const char* kOneFile = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

/// The files that an index names, by tensor. Throws DataError.
std::map<std::string, std::string> read_index(const fs::path& path) {
  const auto json = nlohmann::json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
  const auto fail = [&](const char* what) {
    throw DataError("'{}' is no index of safetensors files: {}", path.string(), what);
  };
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object())
    fail("it has no object \"weight_map\"");
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    if (!file.is_string() || fs::path(file.get<std::string>()).has_parent_path() ||
        file.get<std::string>().empty())
      fail("its weight_map has a value that is no file of its folder");
    files[tensor] = file.get<std::string>();
  }
  if (files.empty()) fail("its weight_map names no tensor");
  return files;
}

/// Throws IoError for a folder that has neither the one file nor an index.
[[noreturn]] void refuse_folder(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("model-") && name.ends_with(".safetensors"))
      throw IoError("'{}' has '{}', but no {}, which names the files of all tensors: copy it there",
                    folder.string(), name, kIndex);
  }
  throw IoError("'{}' has no {}: write it with save_pretrained(..., safe_serialization=True)",
                folder.string(), kOneFile);
}

}  // namespace

WeightsReader::WeightsReader(const fs::path& from) : path_(from) {
  if (!fs::exists(from)) throw IoError("there is no '{}'", from.string());
  std::map<std::string, std::string> index;
  if (fs::is_directory(from)) {
    path_ = from / kOneFile;
    if (!fs::exists(path_) && fs::exists(from / kIndex)) index = read_index(path_ = from / kIndex);
    if (!fs::exists(path_)) refuse_folder(from);
  }
  std::vector<std::string> names;
  for (const auto& [tensor, file] : index) names.push_back(file);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  if (names.empty()) names.push_back(path_.filename().string());
  for (const std::string& name : names) {
    files_.push_back(std::make_unique<SafetensorsReader>(path_.parent_path() / name));
    for (const TensorEntry& entry : files_.back()->entries()) {
      if (!index.empty() && (!index.contains(entry.name) || index[entry.name] != name))
        throw DataError("'{}' has a tensor '{}' that '{}' does not name there",
                        files_.back()->path().string(), entry.name, path_.string());
      places_[entry.name] = {files_.back().get(), &entry};
    }
  }
  for (const auto& [tensor, file] : index)
    if (!places_.contains(tensor))
      throw DataError("'{}' has no tensor '{}', which '{}' names there",
                      (path_.parent_path() / file).string(), tensor, path_.string());
}

const TensorEntry* WeightsReader::find(const std::string& name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : found->second.entry;
}

const fs::path& WeightsReader::file_of(const std::string& name) const {
  return places_.at(name).file->path();
}

std::vector<float> WeightsReader::read(const std::string& name) const {
  const Place& place = places_.at(name);
  return place.file->read(*place.entry);
}

void WeightsReader::read(const std::string& name, std::int64_t first, std::span<float> out) const {
  const Place& place = places_.at(name);
  place.file->read(*place.entry, first, out);
}

std::vector<std::string> WeightsReader::names() const {
  std::vector<std::string> names;
  for (const auto& file : files_)
    for (const TensorEntry& entry : file->entries()) names.push_back(entry.name);
  return names;
}

WeightsWriter::WeightsWriter(const fs::path& folder,
                             const std::vector<SafetensorsWriter::Tensor>& tensors, DType dtype,
                             std::uint64_t max_bytes)
    : folder_(folder) {
  std::vector<std::vector<SafetensorsWriter::Tensor>> files(1);
  std::uint64_t bytes = 0, total = 0;
  for (const auto& tensor : tensors) {
    const auto more =
        static_cast<std::uint64_t>(TensorEntry{.shape = tensor.shape}.elements()) * size_of(dtype);
    if (bytes > 0 && bytes + more > max_bytes) {
      files.emplace_back();
      bytes = 0;
    }
    bytes += more;
    total += more;
    files.back().push_back(tensor);
  }
  nlohmann::ordered_json index = {{"metadata", {{"total_size", total}}},
                                  {"weight_map", nlohmann::ordered_json::object()}};
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string name =
        files.size() == 1 ? kOneFile
                          : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
    for (const auto& tensor : files[i]) index["weight_map"][tensor.name] = name;
    counts_.push_back(files[i].size());
    files_.push_back(std::make_unique<SafetensorsWriter>(folder / name, files[i], dtype));
  }
  if (files.size() > 1) index_ = index.dump(2) + "\n";
}

void WeightsWriter::write(std::span<const float> elements) {
  TRIREME_CHECK(file_ < files_.size(), "all tensors of the headers are written");
  files_[file_]->write(elements);
  if (++written_ < counts_[file_]) return;
  ++file_;
  written_ = 0;
}

void WeightsWriter::finish() {
  for (const auto& file : files_) file->finish();
  if (!index_.empty()) write_file_atomically(folder_ / kIndex, index_);
}

}  // namespace trireme::convert::huggingface
