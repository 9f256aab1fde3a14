// Scratch memory of the attention kernels: pure arithmetic, for plans on machines without a GPU.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/dtype.hpp"
#include "kernels/cuda/attention/tiles.hpp"

namespace trireme::kernels::cuda {

/// Bytes of scratch memory that attention_forward needs: a counter.
constexpr std::size_t attention_forward_workspace() { return sizeof(unsigned); }

/// Where the parts of attention_backward's scratch memory begin, in bytes: the statistics of each
/// row (float2 [b, heads, s]), the turns of the tiles of dQ with the ticket before them, and the
/// partial sums of dQ (float, in the order of the kernel's fragments).
struct AttentionBackwardLayout {
  std::size_t statistics = 0;
  std::size_t turns = 0;
  std::size_t turns_bytes = 0;
  std::size_t partial_dq = 0;
  std::size_t end = 0;
};

/// The layout for qkv of `dtype` and shape [s, b, 3 * heads * d].
constexpr AttentionBackwardLayout attention_backward_layout(DType dtype, std::int64_t s,
                                                            std::int64_t b, std::int64_t heads,
                                                            std::int64_t d) {
  const auto aligned = [](std::size_t bytes) { return (bytes + 255) / 256 * 256; };
  const auto rows = static_cast<std::size_t>(b * heads * s);
  AttentionBackwardLayout layout;
  layout.turns = aligned(8 * rows);
  layout.end = layout.turns;
  if (dtype == DType::f32) return layout;
  // The smallest tiles are of 32 queries, the largest of 128.
  const auto task_tiles = static_cast<std::size_t>((s + 31) / 32);
  const auto task_rows = static_cast<std::size_t>((s + 127) / 128 * 128);
  // Kernels for Hopper pad heads to 64 or 128.
  const std::int64_t columns =
      padded_head(d) > 64 ? std::max<std::int64_t>(padded_head(d), 128) : 64;
  const auto tasks = static_cast<std::size_t>(b * heads);
  layout.turns_bytes = sizeof(unsigned) * (1 + tasks * task_tiles);
  layout.partial_dq = layout.turns + aligned(layout.turns_bytes);
  layout.end = layout.partial_dq +
               aligned(sizeof(float) * tasks * task_rows * static_cast<std::size_t>(columns));
  return layout;
}

/// Bytes of scratch memory that attention_backward needs for qkv of `dtype` and shape [s, b, 3 *
/// heads * d]. attention_cached needs none.
constexpr std::size_t attention_backward_workspace(DType dtype, std::int64_t s, std::int64_t b,
                                                   std::int64_t heads, std::int64_t d) {
  return attention_backward_layout(dtype, s, b, heads, d).end;
}

}  // namespace trireme::kernels::cuda
