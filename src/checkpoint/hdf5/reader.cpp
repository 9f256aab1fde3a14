#include "checkpoint/file.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "checkpoint/elements.hpp"
#include "checkpoint/hdf5/metadata.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "core/philox.hpp"

namespace trireme::checkpoint {

using hdf5::Handle;

struct Reader::File {
  explicit File(const std::filesystem::path& path) : elements(path) {}
  ~File() {
    const hdf5::Lock lock;
    handle = {};
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  Handle handle;
  InputFile elements;
};

namespace {

/// Bytes that are read at a time: a part of a CPU's second-level cache; and of compressed elements,
/// whose chunks are decompressed as a whole.
constexpr std::int64_t kPieceBytes = std::int64_t{512} << 10,
                       kPackedPieceBytes = std::int64_t{32} << 20;
std::int64_t width_of(const TensorInfo& tensor) {
  return static_cast<std::int64_t>(size_of(tensor.dtype));
}

/// The maximum compression ratio of deflate.
constexpr double kMaxDeflateRatio = 1032.0;

/// Runs `function`; a failed HDF5 call in it becomes a DataError that names the file.
template <typename Function>
decltype(auto) naming(const std::filesystem::path& path, Function&& function) {
  try {
    return function();
  } catch (const hdf5::Failure& failure) {
    const std::string_view reason = failure.what();
    if (reason.find("truncated file") != std::string_view::npos)
      throw DataError("'{}' is not a readable checkpoint: it has lost its end; use another one",
                      path.string());
    throw DataError("'{}' is not a readable checkpoint: {}", path.string(), reason);
  }
}

/// Orders names with the numbers in them by value: "layers/2" before "layers/10".
bool comes_before(const TensorInfo& left, const TensorInfo& right) {
  const auto number = [](const std::string& text, std::size_t begin) {
    return text.substr(begin, text.find_first_not_of("0123456789", begin) - begin);
  };
  const std::string& a = left.name;
  const std::string& b = right.name;
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size() && j < b.size()) {
    const std::string m = number(a, i);
    const std::string n = number(b, j);
    const bool numbers = !m.empty() && !n.empty();
    if (numbers && m.size() != n.size()) return m.size() < n.size();
    if (numbers && m != n) return m < n;
    if (!numbers && a[i] != b[j]) return a[i] < b[j];
    i += numbers ? m.size() : 1;
    j += numbers ? n.size() : 1;
  }
  return a.size() - i < b.size() - j;
}

// ---------------------------------------------------------------------------- attributes and deck

/// Reads text of a fixed-length string type with `read(memory type, buffer)`.
template <typename Read>
std::string read_text(hid_t type, Read&& read) {
  std::string text(H5Tget_size(type), '\0');
  read(hdf5::string_type(text.size()), text.data());
  text.resize(std::min(text.find('\0'), text.size()));
  return text;
}

bool is_fixed_text(hid_t type) {
  return H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) == 0;
}

bool is_single(hid_t space) { return H5Sget_simple_extent_npoints(space) == 1; }

Attribute read_attribute(hid_t object, const std::string& name) {
  const Handle attribute = TRIREME_HDF5_OPEN(H5Aclose, H5Aopen, object, name.c_str(), H5P_DEFAULT);
  const Handle type = TRIREME_HDF5_OPEN(H5Tclose, H5Aget_type, attribute.get());
  const Handle space = TRIREME_HDF5_OPEN(H5Sclose, H5Aget_space, attribute.get());
  if (is_single(space.get())) {
    if (H5Tget_class(type.get()) == H5T_INTEGER) {
      std::int64_t value = 0;
      TRIREME_HDF5(H5Aread, attribute.get(), H5T_NATIVE_INT64, &value);
      return value;
    }
    if (H5Tget_class(type.get()) == H5T_FLOAT) {
      double value = 0;
      TRIREME_HDF5(H5Aread, attribute.get(), H5T_NATIVE_DOUBLE, &value);
      return value;
    }
    if (is_fixed_text(type.get()))
      return read_text(type.get(), [&](const Handle& memory, char* text) {
        TRIREME_HDF5(H5Aread, attribute.get(), memory.get(), text);
      });
  }
  throw hdf5::Failure(fmt::format(
      "its attribute '{}' is neither a whole number, nor a number, nor a text of fixed length",
      name));
}

Attributes read_attributes(hid_t file) {
  std::vector<std::string> names;
  const auto collect = [](hid_t, const char* name, const H5A_info_t*, void* data) -> herr_t {
    static_cast<std::vector<std::string>*>(data)->emplace_back(name);
    return 0;
  };
  TRIREME_HDF5(H5Aiterate2, file, H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, collect, &names);
  Attributes attributes;
  for (const std::string& name : names) attributes[name] = read_attribute(file, name);
  return attributes;
}

void check_version(const Attributes& attributes, const std::filesystem::path& path) {
  const auto found = attributes.find("format_version");
  const auto* version =
      found == attributes.end() ? nullptr : std::get_if<std::int64_t>(&found->second);
  if (!version)
    throw DataError(
        "'{}' is not a checkpoint of Trireme: it has no attribute 'format_version' (or it is no "
        "whole number)",
        path.string());
  if (*version > kFormatVersion)
    throw DataError(
        "'{}' has format version {}; this program reads versions up to {}: use a newer program",
        path.string(), *version, kFormatVersion);
}

std::uint64_t read_checksum(hid_t dataset, const std::string& name) {
  const Handle attribute = TRIREME_HDF5_OPEN(H5Aclose, H5Aopen, dataset, "checksum", H5P_DEFAULT);
  const Handle space = TRIREME_HDF5_OPEN(H5Sclose, H5Aget_space, attribute.get());
  if (!is_single(space.get()))
    throw hdf5::Failure(fmt::format("the checksum of '{}' is not one number", name));
  std::uint64_t value = 0;
  TRIREME_HDF5(H5Aread, attribute.get(), H5T_NATIVE_UINT64, &value);
  return value;
}

std::string read_deck(hid_t file) {
  const Handle dataset = TRIREME_HDF5_OPEN(H5Dclose, H5Dopen2, file, "deck", H5P_DEFAULT);
  const Handle type = TRIREME_HDF5_OPEN(H5Tclose, H5Dget_type, dataset.get());
  const Handle space = TRIREME_HDF5_OPEN(H5Sclose, H5Dget_space, dataset.get());
  if (!is_fixed_text(type.get()) || !is_single(space.get()))
    throw hdf5::Failure("its dataset 'deck' is not one text of fixed length");
  const std::string deck = read_text(type.get(), [&](const Handle& memory, char* text) {
    TRIREME_HDF5(H5Dread, dataset.get(), memory.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, text);
  });
  if (read_checksum(dataset.get(), "deck") != name_hash(deck.c_str()))
    throw hdf5::Failure("its dataset 'deck' is damaged: its checksum does not match");
  return deck;
}

// ---------------------------------------------------------------------------- tensors

/// The names of all datasets but the deck.
std::vector<std::string> list_tensors(hid_t file) {
  std::vector<std::string> names;
  const auto collect = [](hid_t, const char* name, const H5O_info_t* info, void* data) -> herr_t {
    if (info->type == H5O_TYPE_DATASET && std::strcmp(name, "deck") != 0)
      static_cast<std::vector<std::string>*>(data)->emplace_back(name);
    return 0;
  };
#if H5_VERSION_GE(1, 12, 0)
  TRIREME_HDF5(H5Ovisit3, file, H5_INDEX_NAME, H5_ITER_NATIVE, collect, &names, H5O_INFO_BASIC);
#else
  TRIREME_HDF5(H5Ovisit2, file, H5_INDEX_NAME, H5_ITER_NATIVE, collect, &names, H5O_INFO_BASIC);
#endif
  return names;
}

/// Fills in where the elements are; throws unless there are as many bytes as the shape asks for,
/// which also bounds the memory that a foreign file can make this program allocate.
void find_elements(hid_t dataset, std::int64_t file_bytes, double expected, TensorInfo& info) {
  const Handle creation = TRIREME_HDF5_OPEN(H5Pclose, H5Dget_create_plist, dataset);
  const auto stored = static_cast<double>(H5Dget_storage_size(dataset));
  const bool packed = H5Pget_layout(creation.get()) == H5D_CHUNKED;
  if (packed ? expected > kMaxDeflateRatio * stored : stored != expected)
    throw hdf5::Failure(fmt::format("its dataset '{}' {} stores {:.0f} bytes instead of {:.0f}",
                                    info.name, to_string(info.shape), stored, expected));
  const haddr_t offset = H5Dget_offset(dataset);
  const bool contiguous = H5Pget_layout(creation.get()) == H5D_CONTIGUOUS &&
                          H5Pget_external_count(creation.get()) == 0 && offset != HADDR_UNDEF;
  if (!contiguous) return;
  if (static_cast<double>(offset) + expected > static_cast<double>(file_bytes))
    throw hdf5::Failure(
        fmt::format("its dataset '{}' ends after the file: it was truncated", info.name));
  info.offset = static_cast<std::int64_t>(offset);
}

TensorInfo read_info(hid_t file, std::int64_t file_bytes, const std::string& name) {
  const Handle dataset = TRIREME_HDF5_OPEN(H5Dclose, H5Dopen2, file, name.c_str(), H5P_DEFAULT);
  const Handle type = TRIREME_HDF5_OPEN(H5Tclose, H5Dget_type, dataset.get());
  const Handle space = TRIREME_HDF5_OPEN(H5Sclose, H5Dget_space, dataset.get());
  TensorInfo info;
  info.name = name;
  if (H5Tequal(type.get(), hdf5::file_type(DType::f64)) > 0)
    info.dtype = DType::f64;
  else if (H5Tequal(type.get(), hdf5::file_type(DType::f32)) <= 0)
    throw hdf5::Failure(fmt::format("its dataset '{}' is neither fp32 nor fp64", name));

  const int rank = TRIREME_HDF5(H5Sget_simple_extent_ndims, space.get());
  std::array<hsize_t, 2> extents{};
  if (rank < 1 || rank > 2)
    throw hdf5::Failure(fmt::format("its dataset '{}' has {} axes, not 1 or 2", name, rank));
  TRIREME_HDF5(H5Sget_simple_extent_dims, space.get(), extents.data(), nullptr);
  const auto extent = [&](int axis) { return static_cast<std::int64_t>(extents[axis]); };
  info.shape = rank == 1 ? Shape{extent(0)} : Shape{extent(0), extent(1)};

  if (std::find(extents.begin(), extents.begin() + rank, 0) != extents.begin() + rank)
    throw hdf5::Failure(
        fmt::format("its dataset '{}' {} has no elements", name, to_string(info.shape)));

  const double expected = static_cast<double>(extents[0]) *
                          (rank == 2 ? static_cast<double>(extents[1]) : 1.0) *
                          static_cast<double>(size_of(info.dtype));
  find_elements(dataset.get(), file_bytes, expected, info);
  info.checksum = read_checksum(dataset.get(), name);
  return info;
}

}  // namespace

Reader::Reader(const std::filesystem::path& path) : path_(path) {
  require_regular_file(path);
  file_ = std::make_unique<File>(path);
  header_.path = path;
  const bool has_structure = verify_structure(path);  // first: HDF5 sees no damaged metadata
  naming(path, [&] {
    const hdf5::Lock lock;
    if (H5Fis_hdf5(path.c_str()) == 0)
      throw DataError("'{}' is not a readable checkpoint: it is no HDF5 file", path.string());
    file_->handle = TRIREME_HDF5_OPEN(H5Fclose, H5Fopen, path.c_str(), H5F_ACC_RDONLY,
                                      hdf5::file_access().get());
    const hid_t file = file_->handle.get();
    header_.attributes = read_attributes(file);
    check_version(header_.attributes, path);
    header_.deck = read_deck(file);
    for (const std::string& name : list_tensors(file))
      header_.tensors.push_back(read_info(file, file_->elements.size(), name));
    // Files of version 1 have none. An editor of HDF5 files removes it, as a truncation does.
    if (!has_structure && header_.version() >= 2)
      throw hdf5::Failure("its structure is damaged: it was changed, or has lost its end");
  });
  std::sort(header_.tensors.begin(), header_.tensors.end(), comes_before);
}

Reader::~Reader() = default;
Reader::Reader(Reader&&) noexcept = default;
Reader& Reader::operator=(Reader&&) noexcept = default;

void Reader::read(const TensorInfo& tensor, const grid::Hyperslabs& slabs, void* data) const {
  if (slabs.empty()) return;
  check_hyperslabs(tensor.name, tensor.shape, slabs);
  if (tensor.offset)
    return file_->elements.read(slabs, tensor.shape, width_of(tensor), *tensor.offset, data);
  try {
    const hdf5::Lock lock;
    const Handle dataset = TRIREME_HDF5_OPEN(H5Dclose, H5Dopen2, file_->handle.get(),
                                             tensor.name.c_str(), H5P_DEFAULT);
    const Handle file_space = hdf5::space_of(tensor.shape);
    hdf5::select(file_space.get(), tensor.shape, slabs);
    const Handle memory_space = hdf5::space_of({count_elements(slabs)});
    TRIREME_HDF5(H5Dread, dataset.get(), hdf5::memory_type(tensor.dtype), memory_space.get(),
                 file_space.get(), H5P_DEFAULT, data);
  } catch (const hdf5::Failure& failure) {
    throw DataError("'{}': tensor '{}' is damaged: {}", path_.string(), tensor.name,
                    failure.what());
  }
}

std::uint64_t Reader::read_with_checksum(const TensorInfo& tensor, const grid::Hyperslabs& slabs,
                                         void* data) const {
  const std::int64_t count = count_elements(slabs), width = width_of(tensor);
  const std::int64_t step = tensor.offset ? kPieceBytes / width : std::max<std::int64_t>(count, 1);
  std::uint64_t sum = 0;
  for (std::int64_t begin = 0; begin < count; begin += step) {
    const grid::Hyperslabs piece =
        grid::slice_hyperslabs(slabs, begin, std::min(begin + step, count));
    void* const elements = static_cast<std::byte*>(data) + begin * width;
    read(tensor, piece, elements);
    sum += checksum(header_.version(), tensor.shape, tensor.dtype, piece, elements);
  }
  return sum;
}

std::uint64_t Reader::stream(
    const TensorInfo& tensor,
    const std::function<void(const void* elements, std::int64_t count)>& use) const {
  const std::int64_t count = tensor.shape.size(), width = width_of(tensor);
  const std::int64_t step =
      std::min((tensor.offset ? kPieceBytes : kPackedPieceBytes) / width, count);
  const auto buffer =
      std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(step * width));
  std::uint64_t sum = 0;
  for (std::int64_t begin = 0; begin < count; begin += step) {
    const std::int64_t end = std::min(begin + step, count);
    sum += read_with_checksum(
        tensor, grid::slice_hyperslabs({grid::whole_tensor(tensor.shape)}, begin, end),
        buffer.get());
    use(buffer.get(), end - begin);
  }
  return sum;
}

void Reader::read_whole(const std::string& name, DType dtype, void* data) const {
  const TensorInfo* tensor = header_.find(name);
  if (!tensor) throw DataError("'{}' has no tensor '{}'", path_.string(), name);
  if (tensor->dtype != dtype)
    throw DataError("'{}': tensor '{}' is {}, not {}", path_.string(), name, name_of(tensor->dtype),
                    name_of(dtype));
  const grid::Hyperslabs all = {grid::whole_tensor(tensor->shape)};
  if (read_with_checksum(*tensor, all, data) != tensor->checksum)
    throw DataError("'{}': tensor '{}' is damaged: its checksum does not match", path_.string(),
                    name);
}

template <typename T>
const T& Header::get(const std::string& name) const {
  const auto found = attributes.find(name);
  if (found == attributes.end())
    throw DataError("'{}': the checkpoint has no attribute '{}'", path.string(), name);
  const T* value = std::get_if<T>(&found->second);
  if (!value)
    throw DataError("'{}': the checkpoint's attribute '{}' has another type", path.string(), name);
  return *value;
}
template const std::int64_t& Header::get(const std::string&) const;
template const double& Header::get(const std::string&) const;
template const std::string& Header::get(const std::string&) const;

const TensorInfo* Header::find(const std::string& name) const {
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const TensorInfo& tensor) { return tensor.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

Header read_header(const std::filesystem::path& path) { return Reader(path).header(); }

}  // namespace trireme::checkpoint
