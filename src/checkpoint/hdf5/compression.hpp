// checkpoint.compression: the elements of a complete unfinished file are compressed, in chunks of
// whole rows, by HDF5's own filters (shuffle, then deflate), so that every HDF5 program reads them.
// Those of small tensors stay as they are.
//
// A second pass over the file, after all ranks have written their elements: chunks are not what
// ranks own, and their places are known only when they are compressed. All CPUs of the first rank's
// node take part, while the other ranks wait or train.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"

namespace trireme::checkpoint {

/// What a checkpoint says apart from its elements.
struct Description {
  const Attributes& attributes;
  const std::string& deck;
  const std::vector<LocalTensor>& tensors;
  const std::vector<std::uint64_t>& checksums;
};

/// Replaces `unfinished`, in which the elements of the tensors begin at `offsets`, by a compressed
/// file; until then `unfinished`.z is written. `level`, of deflate, is 1 to 9. `progressed` is
/// called every few MiB. Called by one rank; no MPI. Throws IoError, hdf5::Failure.
void compress(const std::filesystem::path& unfinished, const Description& description,
              const std::vector<std::int64_t>& offsets, int level,
              const std::function<void()>& progressed);

}  // namespace trireme::checkpoint
