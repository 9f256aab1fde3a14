#include "checkpoint/writer.hpp"

#include <cstdint>
#include <system_error>

#include "checkpoint/checksum.hpp"
#include "checkpoint/hdf5.hpp"
#include "checkpoint/skeleton.hpp"
#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme::checkpoint {

using hdf5::Handle;

namespace {

void write_elements(const std::filesystem::path& path, const std::vector<WholeTensor>& tensors) {
  Handle file =
      TRIREME_HDF5_OPEN(H5Fclose, H5Fopen, path.c_str(), H5F_ACC_RDWR, hdf5::file_access().get());
  for (const WholeTensor& tensor : tensors) {
    const Handle dataset =
        TRIREME_HDF5_OPEN(H5Dclose, H5Dopen2, file.get(), tensor.name.c_str(), H5P_DEFAULT);
    TRIREME_HDF5(H5Dwrite, dataset.get(), hdf5::memory_type(DType::f32), H5S_ALL, H5S_ALL,
                 H5P_DEFAULT, tensor.data);
  }
  TRIREME_HDF5(H5Fflush, file.get(), H5F_SCOPE_GLOBAL);
  file.close();
}

}  // namespace

void write_checkpoint(const std::filesystem::path& path, const Attributes& attributes,
                      const std::string& deck, const std::vector<WholeTensor>& tensors) {
  hdf5::silence();
  std::vector<LocalTensor> described;
  std::vector<std::uint64_t> checksums;
  for (const WholeTensor& tensor : tensors) {
    described.push_back({.name = tensor.name, .shape = tensor.shape, .dtype = DType::f32});
    checksums.push_back(checksum(tensor.shape, DType::f32, {whole(tensor.shape)}, tensor.data));
  }
  const std::filesystem::path target = std::filesystem::absolute(path);
  const std::filesystem::path unfinished = target.string() + ".part";
  try {
    write_skeleton(unfinished, attributes, deck, described, checksums);
    write_elements(unfinished, tensors);
    sync_path(unfinished);
    std::filesystem::rename(unfinished, target);
    sync_path(target.parent_path());
  } catch (const std::exception& failure) {
    std::error_code ignored;
    std::filesystem::remove(unfinished, ignored);
    throw IoError("cannot write '{}': {}", path.string(), failure.what());
  }
}

}  // namespace trireme::checkpoint
