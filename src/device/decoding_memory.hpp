// The memory that passes over one token take on a GPU, for plans of generation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/decoding/pass_memory.hpp"

namespace trireme::device {

using kernels::cuda::PassLayer;

/// Bytes that a captured pass over one token of `layers` and an output projection to `vocab`
/// logits allocates for its one kernel, at most: none on GPUs that have no such kernel.
constexpr std::size_t decoding_pass_bytes(std::span<const PassLayer> layers, std::int64_t vocab) {
  std::size_t bytes = kernels::cuda::kPassBytes + kernels::cuda::pass_step_bytes(vocab);
  for (const PassLayer& layer : layers) bytes += kernels::cuda::pass_layer_bytes(layer);
  return bytes;
}

}  // namespace trireme::device
