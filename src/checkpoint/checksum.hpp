// Checksums and coverage of tensors: sums modulo 2^64 over elements, which ranks can form of their
// parts and add up in any order, so that they do not depend on the layout.
#pragma once

#include <cstdint>

#include "core/dtype.hpp"
#include "core/shape.hpp"
#include "grid/hyperslabs.hpp"

namespace trireme::checkpoint {

/// The sum over the elements of `slabs`, whose memory is `data`, of a mix of the element's global
/// row-major index and its bit pattern: changing or swapping elements changes it.
std::uint64_t checksum(const Shape& shape, DType dtype, const grid::Hyperslabs& slabs,
                       const void* data);

/// The sum of the squares of the global indices of the elements of `slabs`. Together with the count
/// it tells whether parts cover a tensor once: a gap and an overlap of equal size keep the count
/// and change this.
std::uint64_t index_moment(const Shape& shape, const grid::Hyperslabs& slabs);

}  // namespace trireme::checkpoint
