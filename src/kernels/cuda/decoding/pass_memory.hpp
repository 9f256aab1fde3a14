// The device memory of a DecodingPass, for plans. Arithmetic alone.
#pragma once

#include <cstddef>
#include <cstdint>

namespace trireme::kernels::cuda {

inline constexpr std::size_t kPassInstructionBytes = 320;  ///< of an instruction, at most
inline constexpr std::int64_t kPlannedParts = 8;  ///< of the keys, whose sums blocks exchange
inline constexpr std::int64_t kPlannedHeads = 2;  ///< query heads of a block, of grouped heads

/// The widths of a layer: its five operations are qkv, attention, projection and two of the MLP.
struct PassLayer {
  std::int64_t hidden = 0;
  std::int64_t ffn = 0;
  std::int64_t heads = 1, kv_heads = 1, head_dim = 1;
};

/// Bytes of an operation's instruction and of the tagged words of its `width` results.
constexpr std::size_t pass_step_bytes(std::int64_t width) {
  return kPassInstructionBytes + sizeof(std::uint32_t) * ((width + 31) / 32 * 32);
}

/// Bytes of one layer of a pass, with the tagged sums that blocks of attention exchange.
constexpr std::size_t pass_layer_bytes(const PassLayer& layer) {
  const std::int64_t group = layer.heads / layer.kv_heads, of_block = group > 1 ? kPlannedHeads : 1;
  const std::int64_t units = layer.kv_heads * ((group + of_block - 1) / of_block);
  const std::int64_t sums = units * kPlannedParts * of_block * (layer.head_dim + 2);
  return pass_step_bytes((layer.heads + 2 * layer.kv_heads) * layer.head_dim) +
         pass_step_bytes(layer.heads * layer.head_dim) + 2 * pass_step_bytes(layer.hidden) +
         pass_step_bytes(layer.ffn) + 2 * sizeof(std::uint32_t) * sums;
}

/// Bytes of what a pass has once: its state, and what the parts are rounded up to.
inline constexpr std::size_t kPassBytes = 1024;

}  // namespace trireme::kernels::cuda
