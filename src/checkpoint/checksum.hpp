// The checksums of a checkpoint: of each tensor's elements, and of the structure, which is every
// byte that is not an element. HDF5 checksums its own metadata too, but not unused bytes, and only
// once it has trusted some of them.
//
// The checksum of the structure stands in a trailer after the end of the HDF5 file, which HDF5
// ignores:
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

#include "core/tensor.hpp"
#include "grid/layout.hpp"

namespace trireme::checkpoint {

// ---- of tensors: sums modulo 2^64 over elements, which do not depend on the layout

/// The checksum of format version `version` over the elements of `slabs`, whose memory is `data`: a
/// sum of terms of the element's global row-major index and its bit pattern. A change of one 32-bit
/// word always changes it. Version 1 takes three times as long.
std::uint64_t checksum(std::int64_t version, const Shape& shape, DType dtype,
                       const grid::Hyperslabs& slabs, const void* data);

/// The sum of the squares of the global indices of the elements of `slabs`. Together with the count
/// it tells whether parts cover a tensor once: a gap and an overlap of equal size keep the count
/// and change this.
std::uint64_t index_moment(const Shape& shape, const grid::Hyperslabs& slabs);

// ---- of the structure

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
