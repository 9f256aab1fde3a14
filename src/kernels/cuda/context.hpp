// What a CUDA launcher works with. Declared here without CUDA's headers, so that the contracts can
// be read by programs built without CUDA.
#pragma once

#include <cstddef>

struct CUstream_st;

namespace trireme::kernels::cuda {

/// The stream that a launcher queues its kernels on, scratch memory that is free between two
/// launches of that stream, and the GPU's properties.
struct Context {
  CUstream_st* stream = nullptr;
  std::byte* workspace = nullptr;  ///< aligned to 256 bytes
  std::size_t workspace_bytes = 0;
  int sms = 1;
  int capability = 80;          ///< 10 * major + minor
  int shared_memory_bytes = 0;  ///< the most that one block may ask for

  /// Whether kernels run the code for compute capability 9.0. Newer GPUs run that for 8.0, which
  /// has neither clusters nor dependent launches.
  bool is_hopper() const { return capability == 90; }
};

}  // namespace trireme::kernels::cuda
