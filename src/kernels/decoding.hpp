// Generation: attention over a paged KV cache, linear layers of a few tokens, the largest logits.
// T rows are the new tokens of all sequences.
#pragma once

#include <cstdint>
#include <optional>

#include "core/tensor.hpp"
#include "kernels/cuda/context.hpp"
#include "kernels/linear.hpp"
#include "kernels/norms.hpp"

namespace trireme::kernels {

/// A paged cache of one layer: blocks of `positions` consecutive positions of a sequence, in any
/// order. Source: Kwon et al., "PagedAttention" (2023), section 4.
struct KeyValueCache {
  Tensor keys;              ///< of block 0: [kv_heads, positions, d]
  Tensor values;            ///< the same
  std::int64_t stride = 0;  ///< elements from a block to the next, in both
  /// [sequences, columns] int32 in the backend's memory: the block of each sequence's positions
  /// column * positions and following.
  const std::int32_t* table = nullptr;
  std::int64_t columns = 0;
};

/// What the T rows are: a line of the table and a position, [T] int32 in the backend's memory. A
/// row of a negative line is padding.
struct CacheRows {
  const std::int32_t* lines = nullptr;
  const std::int32_t* positions = nullptr;
};

/// Writes the keys and values of the rows to their places in the cache. qkv [T, (heads + 2
/// kv_heads) * d] as in AttentionForward.
struct CacheAppend {
  Tensor qkv;
  KeyValueCache cache;
  CacheRows rows;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
};

/// Attention of each row to positions 0 .. its own of its sequence, or with a `window` to the last
/// `window` of them, from the cache; no dropout. Any lengths; out of a padding row is 0. With
/// `append` the rows are of different sequences, and CacheAppend is part of it. The order of the
/// sums depends on the row's position, and on whether the rows are few. qkv as in
/// CacheAppend, out [T, heads * d]; on CUDA d is at most kMaxHead. Source: Dao et al.,
/// "Flash-Decoding" (2023).
struct AttentionPaged {
  Tensor qkv;
  KeyValueCache cache;
  CacheRows rows;
  Tensor out;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  bool append = false;
  std::int64_t window = 0;  ///< 0: none
};

/// The most rows of a DecodeLinear.
inline constexpr std::int64_t kMaxDecodeRows = 8;

/// The norm of a DecodeLinear's input: weight and, of a layer norm, bias [k].
struct DecodeNorm {
  Tensor weight;
  Tensor bias;
  double eps = 1e-5;
  NormKind kind = NormKind::layer;
};

/// A linear layer of at most kMaxDecodeRows rows with what surrounds it, limited by reading the
/// weight once: y = f(norm(x) weight^T + bias) + residual. x [T, k], weight [n, k], y and
/// residual, which may be y, [T, n], bias [n], of one type; accumulates in the accumulation type
/// and rounds norm(x) and y alone. Without a `norm`, `bias`, `function` or `residual` that step is
/// left out. `gated`: weight [2 n, k], y = f(gate) * up as in GatedForward; without bias and
/// residual. A row's result does not depend on the other rows.
struct DecodeLinear {
  Tensor x;
  Tensor weight;
  Tensor y;
  DecodeNorm norm;  ///< none: no weight
  Tensor bias;
  std::optional<Activation> function = std::nullopt;
  bool gated = false;
  Tensor residual;
};

/// The largest `count` of TopLogits.
inline constexpr std::int64_t kMaxTopLogits = 128;

/// Writes the `count` largest of the first `columns` logits of each row, largest first, of equal
/// ones that of the lower column first; NaN counts as larger than all. logits [T, V], values [T,
/// count] of the accumulation type, ids [T, count] int32 in the backend's memory; count <= columns.
struct TopLogits {
  Tensor logits;
  std::int64_t columns = 0;
  Tensor values;
  std::int32_t* ids = nullptr;
};

/// The sizes of a cache operation. Throws InternalError unless its tensors are as above.
struct CacheSizes {
  std::int64_t rows, heads, kv_heads, head_dim, positions;
  std::int64_t width() const { return (heads + 2 * kv_heads) * head_dim; }
};
CacheSizes cache_sizes(const char* op, const Tensor& qkv, const KeyValueCache& cache,
                       std::int64_t heads, std::int64_t kv_heads);

namespace host {
void cache_append(const CacheAppend& args);
void attention_paged(const AttentionPaged& args);
void decode_linear(const DecodeLinear& args);
void top_logits(const TopLogits& args);
}  // namespace host

namespace cuda {
void cache_append(const CacheAppend& args, const Context& context);
void attention_paged(const AttentionPaged& args, const Context& context);
void decode_linear(const DecodeLinear& args, const Context& context);
void top_logits(const TopLogits& args, const Context& context);
}  // namespace cuda
}  // namespace trireme::kernels
