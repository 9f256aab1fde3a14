// A checkpoint file without the elements of its tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/part_file.hpp"

namespace trireme::checkpoint {

/// Gives `file` its size and all of a checkpoint but the elements of its tensors: attributes, the
/// deck, and every tensor with its checksum and the space for its elements. Returns the byte offset
/// of each tensor's elements, which are contiguous and row-major. Called by one rank; no MPI.
///
/// HDF5 writes to a file in memory, which is then copied: HDF5 1.10 cannot close a file whose
/// metadata met a full disk or an error, and crashes when the program ends. Throws IoError, and
/// hdf5::Failure.
std::vector<std::int64_t> write_metadata(PartFile& file, const Attributes& attributes,
                                         const std::string& deck,
                                         const std::vector<LocalTensor>& tensors,
                                         const std::vector<std::uint64_t>& checksums);

}  // namespace trireme::checkpoint
