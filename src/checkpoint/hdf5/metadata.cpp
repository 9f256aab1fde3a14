// HDF5's handles, and the HDF5 structure of a checkpoint (everything but the elements of its
// tensors), written by one rank.
#include "checkpoint/hdf5/metadata.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/elements.hpp"
#include "checkpoint/file.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "core/philox.hpp"

namespace trireme::checkpoint::hdf5 {
namespace {

/// The error stack's outermost and innermost texts: what failed, and why.
std::string error_stack_text() {
  std::vector<std::string> texts;
  const auto collect = [](unsigned, const H5E_error2_t* error, void* data) -> herr_t {
    auto& found = *static_cast<std::vector<std::string>*>(data);
    if (error->desc && *error->desc) found.emplace_back(error->desc);
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, collect, &texts);
  H5Eclear2(H5E_DEFAULT);
  if (texts.empty()) return "no explanation";
  return texts.size() == 1 ? texts[0] : texts.front() + ": " + texts.back();
}

}  // namespace

template <typename Result>
Result checked(Result result, const char* call) {
  if (result < 0) [[unlikely]]
    throw Failure(fmt::format("{}: {}", call, error_stack_text()));
  return result;
}
template int checked(int, const char*);
template hid_t checked(hid_t, const char*);
template hssize_t checked(hssize_t, const char*);

Lock::Lock() {
  static std::mutex one_thread;
  lock_ = std::unique_lock(one_thread);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);  // of this thread, where HDF5 knows threads
}

Handle::Handle(Handle&& other) noexcept
    : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}

Handle& Handle::operator=(Handle&& other) noexcept {
  std::swap(id_, other.id_);
  std::swap(close_, other.close_);
  return *this;
}

Handle::~Handle() {
  if (id_ >= 0) close_(id_);
}

void Handle::close() {
  if (id_ >= 0) checked(close_(std::exchange(id_, H5I_INVALID_HID)), "close");
}

Handle file_access() {
  Handle access = TRIREME_HDF5_OPEN(H5Pclose, H5Pcreate, H5P_FILE_ACCESS);
  TRIREME_HDF5(H5Pset_libver_bounds, access.get(), H5F_LIBVER_V18, H5F_LIBVER_LATEST);
  TRIREME_HDF5(H5Pset_file_locking, access.get(), false, true);
  TRIREME_HDF5(H5Pset_fclose_degree, access.get(), H5F_CLOSE_STRONG);
  return access;
}

hid_t file_type(DType dtype) {
  return dispatch(dtype, [](auto zero) -> hid_t {
    return dtype_of<decltype(zero)> == DType::f64 ? H5T_IEEE_F64LE : H5T_IEEE_F32LE;
  });
}

hid_t memory_type(DType dtype) {
  return dispatch(dtype, [](auto zero) -> hid_t {
    return dtype_of<decltype(zero)> == DType::f64 ? H5T_NATIVE_DOUBLE : H5T_NATIVE_FLOAT;
  });
}

Handle space_of(const Shape& shape) {
  std::array<hsize_t, 4> extents{};
  for (int axis = 0; axis < shape.rank(); ++axis)
    extents[static_cast<std::size_t>(axis)] = static_cast<hsize_t>(shape[axis]);
  return TRIREME_HDF5_OPEN(H5Sclose, H5Screate_simple, shape.rank(), extents.data(), nullptr);
}

void select(hid_t space, const Shape& shape, const grid::Hyperslabs& slabs) {
  TRIREME_CHECK(shape.rank() <= 2, "slabs select in one or two axes, not in {}", to_string(shape));
  TRIREME_HDF5(H5Sselect_none, space);
  for (const grid::Hyperslab& slab : slabs) {
    const std::array<hsize_t, 2> begin = {static_cast<hsize_t>(slab.row),
                                          static_cast<hsize_t>(slab.column)};
    const std::array<hsize_t, 2> count = {static_cast<hsize_t>(slab.rows),
                                          static_cast<hsize_t>(slab.columns)};
    TRIREME_HDF5(H5Sselect_hyperslab, space, H5S_SELECT_OR, begin.data(), nullptr, count.data(),
                 nullptr);
  }
}

Handle string_type(std::size_t length) {
  Handle type = TRIREME_HDF5_OPEN(H5Tclose, H5Tcopy, H5T_C_S1);
  TRIREME_HDF5(H5Tset_size, type.get(), std::max<std::size_t>(length, 1));
  TRIREME_HDF5(H5Tset_cset, type.get(), H5T_CSET_UTF8);
  TRIREME_HDF5(H5Tset_strpad, type.get(), H5T_STR_NULLPAD);
  return type;
}

}  // namespace trireme::checkpoint::hdf5

namespace trireme::checkpoint {

using hdf5::Handle;

namespace {

// ---------------------------------------------------------------------------- a file in memory

std::int64_t checked_call(std::int64_t result, const char* call) {
  if (result < 0) throw IoError("file in memory: {}: {}", call, std::strerror(errno));
  return result;
}

/// lseek() to the next data or hole from `offset`; the end of the file where there is none.
std::int64_t seek(int fd, std::int64_t offset, int whence, std::int64_t end) {
  const off_t found = ::lseek(fd, offset, whence);
  return found < 0 && errno == ENXIO ? end : checked_call(found, "lseek");
}

}  // namespace

MemoryFile::MemoryFile()
    : fd_(static_cast<int>(
          checked_call(::memfd_create("checkpoint metadata", MFD_CLOEXEC), "memfd_create"))) {}

MemoryFile::~MemoryFile() { ::close(fd_); }

std::int64_t MemoryFile::size() const { return checked_call(::lseek(fd_, 0, SEEK_END), "lseek"); }

void MemoryFile::free(std::int64_t offset, std::int64_t bytes) {
  constexpr std::int64_t kPage = 4096;  // smaller than that of some hosts, which free less
  const std::int64_t begin = (offset + kPage - 1) / kPage * kPage;
  const std::int64_t end = (offset + bytes) / kPage * kPage;
  if (begin < end)
    checked_call(::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin, end - begin),
                 "fallocate");
}

std::string MemoryFile::path() const { return "/proc/self/fd/" + std::to_string(fd_); }

void MemoryFile::read(void* data, std::int64_t bytes, std::int64_t offset) const {
  while (bytes > 0) {
    const std::int64_t got =
        checked_call(::pread(fd_, data, static_cast<std::size_t>(bytes), offset), "pread");
    TRIREME_CHECK(got > 0, "a file in memory ends at byte {}", offset);
    data = static_cast<std::byte*>(data) + got;
    offset += got;
    bytes -= got;
  }
}

void MemoryFile::copy_to(PartFile& file, std::vector<ElementRange> kept) const {
  const std::int64_t size = this->size();
  file.resize(size);
  std::vector<std::byte> buffer(std::size_t{1} << 20);
  const auto copy = [&](std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      const std::int64_t bytes = std::min<std::int64_t>(end - begin, std::ssize(buffer));
      read(buffer.data(), bytes, begin);
      file.write(buffer.data(), bytes, begin);
      begin += bytes;
    }
  };
  std::ranges::sort(kept, {}, &ElementRange::offset);
  auto next = kept.begin();
  for (std::int64_t begin = 0; begin < size;) {
    begin = seek(fd_, begin, SEEK_DATA, size);
    const std::int64_t end = begin < size ? seek(fd_, begin, SEEK_HOLE, size) : size;
    // Pages have both structure and elements.
    for (; next != kept.end() && next->offset < end; ++next) {
      copy(begin, std::min(end, next->offset));
      begin = std::max(begin, next->offset + next->bytes);
      if (begin >= end) break;  // the range may have bytes in later pages
    }
    copy(begin, end);
    begin = std::max(begin, end);
  }
}

// ---------------------------------------------------------------------------- HDF5

namespace {

/// Creation properties without time stamps: the same state gives the same file.
Handle without_times(hid_t property_class) {
  Handle creation = TRIREME_HDF5_OPEN(H5Pclose, H5Pcreate, property_class);
  TRIREME_HDF5(H5Pset_obj_track_times, creation.get(), false);
  return creation;
}

void write_attribute(hid_t object, const std::string& name, hid_t file_type, hid_t memory_type,
                     const void* value) {
  const Handle space = TRIREME_HDF5_OPEN(H5Sclose, H5Screate, H5S_SCALAR);
  const Handle attribute = TRIREME_HDF5_OPEN(H5Aclose, H5Acreate2, object, name.c_str(), file_type,
                                             space.get(), H5P_DEFAULT, H5P_DEFAULT);
  TRIREME_HDF5(H5Awrite, attribute.get(), memory_type, value);
}

void write_attribute(hid_t object, const std::string& name, const Attribute& value) {
  if (const auto* number = std::get_if<std::int64_t>(&value)) {
    write_attribute(object, name, H5T_STD_I64LE, H5T_NATIVE_INT64, number);
  } else if (const auto* real = std::get_if<double>(&value)) {
    write_attribute(object, name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, real);
  } else {
    const std::string& text = std::get<std::string>(value);
    const Handle type = hdf5::string_type(text.size());
    write_attribute(object, name, type.get(), type.get(), text.c_str());
  }
}

void write_checksum(hid_t dataset, std::uint64_t checksum) {
  write_attribute(dataset, "checksum", H5T_STD_U64LE, H5T_NATIVE_UINT64, &checksum);
}

void write_deck(hid_t file, const std::string& deck) {
  const Handle space = TRIREME_HDF5_OPEN(H5Sclose, H5Screate, H5S_SCALAR);
  const Handle type = hdf5::string_type(deck.size());
  const Handle dataset =
      TRIREME_HDF5_OPEN(H5Dclose, H5Dcreate2, file, "deck", type.get(), space.get(), H5P_DEFAULT,
                        without_times(H5P_DATASET_CREATE).get(), H5P_DEFAULT);
  TRIREME_HDF5(H5Dwrite, dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, deck.c_str());
  write_checksum(dataset.get(), name_hash(deck.c_str()));
}

/// Creates the groups in the path `name` that are not in `made`, and adds them to it.
void create_groups(hid_t file, const std::string& name, std::set<std::string>& made) {
  for (std::size_t end = name.find('/'); end != std::string::npos; end = name.find('/', end + 1)) {
    const std::string group = name.substr(0, end);
    if (made.insert(group).second)
      TRIREME_HDF5_OPEN(H5Gclose, H5Gcreate2, file, group.c_str(), H5P_DEFAULT,
                        without_times(H5P_GROUP_CREATE).get(), H5P_DEFAULT);
  }
}

/// The byte offset of the elements of `tensor` in the file.
std::int64_t offset_of(hid_t dataset, const LocalTensor& tensor) {
  const haddr_t offset = H5Dget_offset(dataset);
  if (offset == HADDR_UNDEF)
    throw hdf5::Failure(fmt::format("H5Dget_offset: no space is allocated for '{}' {}", tensor.name,
                                    to_string(tensor.shape)));
  return static_cast<std::int64_t>(offset);
}

}  // namespace

void write_hdf5(const std::string& path, const Attributes& attributes, const std::string& deck,
                const std::vector<LocalTensor>& tensors,
                const std::vector<std::uint64_t>& checksums, const DatasetMaker& maker) {
  const hdf5::Lock lock;
  const Handle access = hdf5::file_access();
  // The default driver resolves symbolic links, and a file in memory has only such a path.
  TRIREME_HDF5(H5Pset_fapl_stdio, access.get());
  Handle file = TRIREME_HDF5_OPEN(H5Fclose, H5Fcreate, path.c_str(), H5F_ACC_TRUNC,
                                  without_times(H5P_FILE_CREATE).get(), access.get());
  Attributes all = attributes;
  all["format_version"] = kFormatVersion;
  for (const auto& [name, value] : all) write_attribute(file.get(), name, value);
  write_deck(file.get(), deck);

  std::set<std::string> groups;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const LocalTensor& tensor = tensors[i];
    create_groups(file.get(), tensor.name, groups);
    const Handle space = hdf5::space_of(tensor.shape);
    const Handle creation = without_times(H5P_DATASET_CREATE);
    TRIREME_HDF5(H5Pset_fill_time, creation.get(), H5D_FILL_TIME_NEVER);
    maker.set_storage(creation.get(), tensor);
    const Handle dataset = TRIREME_HDF5_OPEN(H5Dclose, H5Dcreate2, file.get(), tensor.name.c_str(),
                                             hdf5::file_type(tensor.dtype), space.get(),
                                             H5P_DEFAULT, creation.get(), H5P_DEFAULT);
    write_checksum(dataset.get(), checksums[i]);
    maker.created(dataset.get(), i);
  }
  file.close();
}

std::int64_t max_file_bytes(const std::string& deck, const std::vector<LocalTensor>& tensors) {
  // A tensor's metadata and its share of the groups take less than 2 KiB.
  std::int64_t bytes = 65536 + static_cast<std::int64_t>(deck.size());
  for (const LocalTensor& tensor : tensors)
    bytes += tensor.shape.size() * static_cast<std::int64_t>(size_of(tensor.dtype)) + 2048;
  return bytes;
}

std::vector<std::int64_t> write_metadata(PartFile& file, const Attributes& attributes,
                                         const std::string& deck,
                                         const std::vector<LocalTensor>& tensors,
                                         const std::vector<std::uint64_t>& checksums) {
  const MemoryFile memory;
  std::vector<std::int64_t> offsets;
  std::vector<ElementRange> elements;
  const auto allocate_early = [](hid_t creation, const LocalTensor&) {
    TRIREME_HDF5(H5Pset_alloc_time, creation, H5D_ALLOC_TIME_EARLY);
  };
  const auto note_offset = [&](hid_t dataset, std::size_t i) {
    offsets.push_back(offset_of(dataset, tensors[i]));
    elements.push_back({offsets[i], tensors[i].shape.size() *
                                        static_cast<std::int64_t>(size_of(tensors[i].dtype))});
  };
  write_hdf5(memory.path(), attributes, deck, tensors, checksums, {allocate_early, note_offset});
  memory.copy_to(file, elements);
  append_trailer(file, memory, std::move(elements));
  return offsets;
}

void append_trailer(PartFile& file, const MemoryFile& memory, std::vector<ElementRange> elements) {
  const std::string trailer = structure_trailer(
      std::move(elements), memory.size(), [&](void* data, std::int64_t bytes, std::int64_t offset) {
        memory.read(data, bytes, offset);
      });
  file.write(trailer.data(), std::ssize(trailer), memory.size());
}

}  // namespace trireme::checkpoint
