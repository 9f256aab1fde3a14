#include "checkpoint/metadata.hpp"

#include <fmt/format.h>

#include <set>

#include "checkpoint/hdf5.hpp"
#include "checkpoint/memory_file.hpp"
#include "core/philox.hpp"

namespace trireme::checkpoint {

using hdf5::Handle;

namespace {

/// Properties for making objects that hold no times: the same state gives the same file.
Handle timeless(hid_t property_class) {
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
                        timeless(H5P_DATASET_CREATE).get(), H5P_DEFAULT);
  TRIREME_HDF5(H5Dwrite, dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, deck.c_str());
  write_checksum(dataset.get(), name_hash(deck.c_str()));
}

/// Makes the groups on the way to `name` that `made` does not have yet, and notes them there.
void make_groups(hid_t file, const std::string& name, std::set<std::string>& made) {
  for (std::size_t end = name.find('/'); end != std::string::npos; end = name.find('/', end + 1)) {
    const std::string group = name.substr(0, end);
    if (made.insert(group).second)
      TRIREME_HDF5_OPEN(H5Gclose, H5Gcreate2, file, group.c_str(), H5P_DEFAULT,
                        timeless(H5P_GROUP_CREATE).get(), H5P_DEFAULT);
  }
}

/// Where the elements of `tensor` begin in the file.
std::int64_t offset_of(hid_t dataset, const LocalTensor& tensor) {
  const haddr_t offset = H5Dget_offset(dataset);
  if (offset == HADDR_UNDEF)
    throw hdf5::Failure(fmt::format("H5Dget_offset: no space is allocated for '{}' {}", tensor.name,
                                    to_string(tensor.shape)));
  return static_cast<std::int64_t>(offset);
}

/// write_metadata() to the file at `path`, which is created or replaced.
std::vector<std::int64_t> write_hdf5(const std::string& path, const Attributes& attributes,
                                     const std::string& deck,
                                     const std::vector<LocalTensor>& tensors,
                                     const std::vector<std::uint64_t>& checksums) {
  const Handle access = hdf5::file_access();
  // The default driver resolves symbolic links, and a file in memory has only such a path.
  TRIREME_HDF5(H5Pset_fapl_stdio, access.get());
  Handle file = TRIREME_HDF5_OPEN(H5Fclose, H5Fcreate, path.c_str(), H5F_ACC_TRUNC,
                                  timeless(H5P_FILE_CREATE).get(), access.get());
  Attributes all = attributes;
  all["format_version"] = kFormatVersion;
  for (const auto& [name, value] : all) write_attribute(file.get(), name, value);
  write_deck(file.get(), deck);

  const Handle creation = timeless(H5P_DATASET_CREATE);
  TRIREME_HDF5(H5Pset_alloc_time, creation.get(), H5D_ALLOC_TIME_EARLY);
  TRIREME_HDF5(H5Pset_fill_time, creation.get(), H5D_FILL_TIME_NEVER);
  std::set<std::string> groups;
  std::vector<std::int64_t> offsets;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const LocalTensor& tensor = tensors[i];
    make_groups(file.get(), tensor.name, groups);
    const Handle space = hdf5::space_of(tensor.shape);
    const Handle dataset = TRIREME_HDF5_OPEN(H5Dclose, H5Dcreate2, file.get(), tensor.name.c_str(),
                                             hdf5::file_type(tensor.dtype), space.get(),
                                             H5P_DEFAULT, creation.get(), H5P_DEFAULT);
    write_checksum(dataset.get(), checksums[i]);
    offsets.push_back(offset_of(dataset.get(), tensor));
  }
  file.close();
  return offsets;
}

}  // namespace

std::vector<std::int64_t> write_metadata(PartFile& file, const Attributes& attributes,
                                         const std::string& deck,
                                         const std::vector<LocalTensor>& tensors,
                                         const std::vector<std::uint64_t>& checksums) {
  const MemoryFile memory;
  const std::vector<std::int64_t> offsets =
      write_hdf5(memory.path(), attributes, deck, tensors, checksums);
  memory.copy_to(file);
  return offsets;
}

}  // namespace trireme::checkpoint
