// Where queries and keys lie in qkv, and the rotation of their pairs.
#pragma once

#include <cstdint>

#include "kernels/preconditions.hpp"

namespace trireme::kernels::cuda {

/// The heads of a row of qkv [s, b, (heads + 2 kv_heads) * d].
struct QkLayout {
  std::int64_t rows;
  int heads, kv_heads, d;

  __device__ __host__ int columns() const { return (heads + 2 * kv_heads) * d; }
  __device__ __host__ int qk_heads() const { return heads + kv_heads; }
  /// Heads of part 0, q, or 1, k.
  __device__ __host__ int heads_of(int part) const { return part == 0 ? heads : kv_heads; }
};

/// Throws InternalError when qkv is no such tensor.
inline QkLayout layout_of(const char* op, const Tensor& qkv, std::int64_t heads,
                          std::int64_t kv_heads) {
  const std::int64_t all = heads + 2 * kv_heads;
  TRIREME_CHECK(heads > 0 && kv_heads > 0 && qkv.shape.rank() == 3 && qkv.shape[2] > 0 &&
                    qkv.shape[2] % all == 0,
                "{}: qkv is {}, expected [s, b, (heads + 2 kv_heads) * d] with {} and {} heads", op,
                to_string(qkv.shape), heads, kv_heads);
  const std::int64_t rows = qkv.shape[0] * qkv.shape[1];
  check_matrix(op, "qkv", qkv, qkv.dtype, {rows, qkv.shape[2]});
  TRIREME_CHECK(qkv.shape[2] < 1 << 30 && rows < 1 << 30, "{}: qkv is {}, which is too large", op,
                to_string(qkv.shape));
  return {rows, static_cast<int>(heads), static_cast<int>(kv_heads),
          static_cast<int>(qkv.shape[2] / all)};
}

/// A pair of elements after its rotation, the same bits in every kernel.
struct RotatedPair {
  float low, high;
};
__device__ __forceinline__ RotatedPair rotate_pair(float low, float high, float cosine,
                                                   float sine) {
  return {fmaf(low, cosine, -(high * sine)), fmaf(high, cosine, low * sine)};
}

}  // namespace trireme::kernels::cuda
