// Writing a checkpoint from one process, without MPI: what save() writes, for converters.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/reader.hpp"

namespace trireme::checkpoint {

/// A logical tensor, all of it in this process's memory: shape.size() elements of fp32.
struct WholeTensor {
  std::string name;  ///< path in the file, without a leading slash
  Shape shape;       ///< one or two axes
  const float* data = nullptr;
};

/// Writes a checkpoint under a temporary name, syncs it and renames it to `path`, whose folder must
/// exist; no file `latest` is touched. `attributes` gains `format_version`. Throws IoError when the
/// file cannot be written.
void write_checkpoint(const std::filesystem::path& path, const Attributes& attributes,
                      const std::string& deck, const std::vector<WholeTensor>& tensors);

}  // namespace trireme::checkpoint
