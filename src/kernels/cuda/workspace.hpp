// Scratch memory that the CUDA kernels need, by operation: pure arithmetic, so that plans for GPUs
// can be made on machines without one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/tensor.hpp"
#include "kernels/cuda/attention/tiles.hpp"

namespace trireme::kernels::cuda {

/// What cuBLASLt may use: enough for split-K on Hopper.
inline constexpr std::size_t kGemmWorkspace = std::size_t{64} << 20;

/// Blocks that gather column sums at most; each leaves one row of a strip of at most 256 columns.
inline constexpr int kMaxColumnBlocks = 1024;
constexpr std::size_t column_sums_workspace(std::int64_t columns) {
  return sizeof(float) * static_cast<std::size_t>(
                             columns > 256 * kMaxColumnBlocks ? columns : 256 * kMaxColumnBlocks);
}
constexpr std::size_t bias_gradient_workspace(std::int64_t n) { return column_sums_workspace(n); }
constexpr std::size_t gelu_backward_workspace(std::int64_t n) { return column_sums_workspace(n); }

/// Blocks of layernorm_backward at most, and one on each SM; each leaves its sums for dweight,
/// dbias and dx_sum.
inline constexpr int kMaxNormBlocks = 320;
constexpr std::size_t layernorm_backward_workspace(std::int64_t h) {
  return sizeof(float) * static_cast<std::size_t>(3 * h * kMaxNormBlocks);
}

/// Blocks of qk_norm_backward at most, or one for each head; each leaves its sums for the weights
/// of its head.
inline constexpr std::int64_t kQkNormBlocks = 2048;
constexpr std::size_t qk_norm_backward_workspace(std::int64_t heads, std::int64_t d) {
  return sizeof(float) * static_cast<std::size_t>(std::max(kQkNormBlocks, heads) * d);
}

/// embedding_backward keeps the sorted tokens, twice, what the sort itself needs, and two sums
/// [hidden] for every kEmbeddingChunk tokens.
inline constexpr std::int64_t kEmbeddingChunk = 64;
/// Of the tokens and rows that are sorted: 2 x 2 arrays of 4 bytes, each aligned to 256 bytes.
constexpr std::size_t embedding_pairs_workspace(std::int64_t tokens) {
  return 4 * ((sizeof(std::int32_t) * static_cast<std::size_t>(tokens) + 255) / 256 * 256);
}
/// A bound on what CUB's radix sort asks for besides: counters of 256 digits for each block of at
/// least 1024 tokens, and for each block that the largest GPU runs concurrently.
constexpr std::size_t embedding_sort_workspace(std::int64_t tokens) {
  return (std::size_t{8} << 20) + static_cast<std::size_t>(tokens) / 256 * 256;
}
constexpr std::size_t embedding_backward_workspace(std::int64_t tokens, std::int64_t h) {
  const std::int64_t chunks = (tokens + kEmbeddingChunk - 1) / kEmbeddingChunk;
  return embedding_pairs_workspace(tokens) + embedding_sort_workspace(tokens) +
         sizeof(float) * static_cast<std::size_t>(2 * chunks * h);
}

/// Blocks of sums of doubles over a whole buffer; each leaves one. A fixed number, so that the
/// result is the same on every GPU.
inline constexpr int kSumBlocks = 1024;
constexpr std::size_t squared_sum_workspace() { return sizeof(double) * kSumBlocks; }
constexpr std::size_t cross_entropy_loss_workspace() { return sizeof(double) * kSumBlocks; }

/// Bytes of scratch memory that attention_forward needs: a counter.
constexpr std::size_t attention_forward_workspace() { return sizeof(unsigned); }

/// Where the parts of attention_backward's scratch memory begin, in bytes: the statistics of each
/// row (float2 [b, heads, s]), the turns of the tiles of dQ with the ticket before them, the
/// partial sums of dQ (float, in the order of the kernel's fragments), and, with fewer kv_heads
/// than heads, dK and dV of each query head ([s, b, 2 heads, d] of 16-bit types).
struct AttentionBackwardLayout {
  std::size_t statistics = 0;
  std::size_t turns = 0;
  std::size_t turns_bytes = 0;
  std::size_t partial_dq = 0;
  std::size_t key_gradients = 0;
  std::size_t end = 0;
};

/// The layout for qkv of `dtype` and shape [s, b, (heads + 2 kv_heads) * d]; 0 kv_heads stand for
/// `heads`.
constexpr AttentionBackwardLayout attention_backward_layout(DType dtype, std::int64_t s,
                                                            std::int64_t b, std::int64_t heads,
                                                            std::int64_t d,
                                                            std::int64_t kv_heads = 0) {
  const auto aligned = [](std::size_t bytes) { return (bytes + 255) / 256 * 256; };
  const auto rows = static_cast<std::size_t>(b * heads * s);
  AttentionBackwardLayout layout;
  layout.turns = aligned(8 * rows);
  layout.end = layout.turns;
  if (dtype == DType::f32) return layout;
  // The smallest tiles are of 32 queries, the largest of 128.
  const auto task_tiles = static_cast<std::size_t>((s + 31) / 32);
  const auto task_rows = static_cast<std::size_t>((s + 127) / 128 * 128);
  // Kernels for Hopper have partial sums of 64 or 128 columns.
  const std::int64_t columns =
      padded_head(d) > 64 ? std::max<std::int64_t>(padded_head(d), 128) : 64;
  const auto tasks = static_cast<std::size_t>(b * heads);
  layout.turns_bytes = sizeof(unsigned) * (1 + tasks * task_tiles);
  layout.partial_dq = layout.turns + aligned(layout.turns_bytes);
  layout.key_gradients = layout.partial_dq + aligned(sizeof(float) * tasks * task_rows *
                                                     static_cast<std::size_t>(columns));
  const bool grouped = kv_heads > 0 && kv_heads < heads;
  layout.end = layout.key_gradients +
               (grouped ? aligned(2 * 2 * rows * static_cast<std::size_t>(d)) : std::size_t{0});
  return layout;
}

/// Bytes of scratch memory that attention_backward needs; arguments as above.
constexpr std::size_t attention_backward_workspace(DType dtype, std::int64_t s, std::int64_t b,
                                                   std::int64_t heads, std::int64_t d,
                                                   std::int64_t kv_heads = 0) {
  return attention_backward_layout(dtype, s, b, heads, d, kv_heads).end;
}

// ---- the device memory of a DecodingPass

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
