// The checksum of a checkpoint's structure: of every byte that is not an element of a tensor. HDF5
// checksums its own metadata too, but not unused bytes, and only once it has trusted some of them.
//
// It stands in a trailer after the end of the HDF5 file, which HDF5 ignores:
//
//   for each tensor, by offset   the offset and the size of its elements, in bytes
//   count                        of tensors
//   hash                         of all bytes before it that are not elements
//   "TRIREME\n"
//
// All numbers have 64 bits, little-endian.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace trireme::checkpoint {

/// Where the elements of a tensor are in the file, in bytes.
struct ElementRange {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
};

/// Reads `bytes` at `offset` of a file into `data`; throws when it cannot.
using ReadAt = std::function<void(void* data, std::int64_t bytes, std::int64_t offset)>;

/// The trailer of an HDF5 file of `file_bytes`, which `read` reads, with the elements of its
/// tensors at `elements`.
std::string structure_trailer(std::vector<ElementRange> elements, std::int64_t file_bytes,
                              const ReadAt& read);

/// Verifies the structure of the file at `path` without HDF5; elements are not read. Returns false
/// when it has no trailer. Throws DataError when the trailer does not match, IoError when the file
/// cannot be read.
bool verify_structure(const std::filesystem::path& path);

}  // namespace trireme::checkpoint
