#include "checkpoint/writer.hpp"

#include <cstdint>
#include <system_error>

#include "checkpoint/checksum.hpp"
#include "checkpoint/hdf5.hpp"
#include "checkpoint/metadata.hpp"
#include "checkpoint/part_file.hpp"
#include "checkpoint/room.hpp"
#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme::checkpoint {

void write_checkpoint(const std::filesystem::path& path, const Attributes& attributes,
                      const std::string& deck, const std::vector<WholeTensor>& tensors) {
  hdf5::silence();
  std::vector<LocalTensor> described;
  std::vector<std::uint64_t> checksums;
  for (const WholeTensor& tensor : tensors) {
    described.push_back({.name = tensor.name, .shape = tensor.shape, .dtype = DType::f32});
    checksums.push_back(
        checksum(tensor.shape, DType::f32, {grid::whole_tensor(tensor.shape)}, tensor.data));
  }
  const std::filesystem::path target = std::filesystem::absolute(path);
  const std::filesystem::path unfinished = target.string() + ".part";
  try {
    std::filesystem::remove(unfinished);
    reserve_space(unfinished, upper_size(deck, described));
    PartFile file(unfinished, [] {});
    const std::vector<std::int64_t> offsets =
        write_metadata(file, attributes, deck, described, checksums);
    for (std::size_t i = 0; i < tensors.size(); ++i)
      file.write({grid::whole_tensor(tensors[i].shape)}, tensors[i].shape, sizeof(float),
                 tensors[i].data, offsets[i]);
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
