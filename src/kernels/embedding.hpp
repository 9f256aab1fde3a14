// Word and position embeddings.
#pragma once

#include <cstdint>

#include "core/tensor.hpp"
#include "kernels/cuda/context.hpp"
#include "kernels/dropout.hpp"

namespace trireme::kernels {

/// Vocabulary-parallel look-up: writes out[t] = table[ids[t] - first_row], or zeros for ids of
/// other shards; the sum over the tensor group is the embedding. ids [T] int32 in the backend's
/// memory, table [rows, h], out [T, h]. Source: Megatron-LM (Shoeybi et al. 2019), section 3.
struct EmbeddingForward {
  const std::int32_t* ids = nullptr;
  Tensor table;
  std::int64_t first_row = 0;
  Tensor out;
};

/// Adds dout[t] to dtable[ids[t] - first_row] for the ids of this shard; tokens are added in order,
/// so the sum is deterministic. dout [T, h], dtable [rows, h] of the accumulation type; `ids` as
/// above.
struct EmbeddingBackward {
  const std::int32_t* ids = nullptr;
  Tensor dout;
  std::int64_t first_row = 0;
  Tensor dtable;
};

/// Writes x = dropout(x + position[row]) in place for x[i, j, :], where row is rows[i * b + j] if
/// `rows` is given and first_position + i otherwise; the mask is that of the position
/// first_position + i in both cases. x [s, b, h], position [positions, h], of which first_position
/// .. first_position + s - 1 must exist without `rows`; rows [s, b] int32 in the backend's memory.
struct PositionDropout {
  Tensor x;
  Tensor position;
  std::int64_t first_position = 0;
  Dropout dropout;
  const std::int32_t* rows = nullptr;
};

/// Adds the sum over the batch of dout[i, :, :] to dposition[i]. dout [s, b, h], dposition
/// [positions, h] of the accumulation type. Where PositionDropout had `rows`, EmbeddingBackward of
/// them is the gradient.
struct PositionBackward {
  Tensor dout;
  Tensor dposition;
};

namespace host {
void embedding_forward(const EmbeddingForward& args);
void embedding_backward(const EmbeddingBackward& args);
void position_dropout(const PositionDropout& args);
void position_backward(const PositionBackward& args);
}  // namespace host

namespace cuda {
void embedding_forward(const EmbeddingForward& args, const Context& context);
void embedding_backward(const EmbeddingBackward& args, const Context& context);
void position_dropout(const PositionDropout& args, const Context& context);
void position_backward(const PositionBackward& args, const Context& context);
}  // namespace cuda
}  // namespace trireme::kernels
