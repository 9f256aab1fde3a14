// Both ends of a model: word and position embeddings, and the cross entropy of logits over the
// vocabulary.
#pragma once

#include <cstdint>

#include "core/tensor.hpp"
#include "kernels/cuda/context.hpp"
#include "kernels/norms.hpp"

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

// ---- cross entropy

// Vocabulary-parallel, in local steps; the caller reduces over the tensor group
// between them. Source: Megatron-LM (Shoeybi et al. 2019), section 3. Shard columns: the local
// logits hold columns first_column .. first_column + columns - 1 of the vocabulary, then padding
// columns, which never enter the softmax. logits [T, local columns with padding]; max, sum, target
// [T] of the accumulation type; labels [T] int32 in the backend's memory, -1 where a token is
// ignored.

/// Writes max[t], the largest logit of the shard's columns (-infinity when it has none), sum[t] =
/// sum over them of exp(logit - max[t]) (0 when it has none), and target[t] = logit[label] when the
/// label's column is here, else 0. One shard alone is then done; several go on with
/// CrossEntropyRescale.
struct CrossEntropyStatistics {
  Tensor logits;
  std::int64_t first_column = 0;
  std::int64_t columns = 0;
  const std::int32_t* labels = nullptr;
  Tensor max;
  Tensor sum;
  Tensor target;
};

/// Writes sum[t] *= exp(local_max[t] - max[t]), with max the largest of all shards' local_max.
/// All-reduce sum and target with sum afterwards.
struct CrossEntropyRescale {
  Tensor local_max;
  Tensor max;
  Tensor sum;
};

/// Adds the loss of the tokens that count, sum of log(sum[t]) + max[t] - target[t], to loss [1]
/// f64. `largest` [1] f64, where given, becomes the larger of itself and the largest max[t] of
/// these tokens.
struct CrossEntropyLoss {
  const std::int32_t* labels = nullptr;
  Tensor max;
  Tensor sum;
  Tensor target;
  Tensor loss;
  Tensor largest;
};

/// Writes d(scale * (loss + z_loss * sum of lse[t]^2))/d(logits) over the logits, in place, with
/// lse[t] = log(sum[t]) + max[t]; zero for ignored tokens and padding columns. Source of the second
/// term: Chowdhery et al., "PaLM" (2022), section 5.
struct CrossEntropyBackward {
  Tensor logits;
  std::int64_t first_column = 0;
  std::int64_t columns = 0;
  const std::int32_t* labels = nullptr;
  Tensor max;
  Tensor sum;
  double scale = 1.0;
  double z_loss = 0.0;
};

/// CrossEntropyStatistics, and then CrossEntropyBackward with its results: for a shard that is the
/// whole vocabulary.
struct CrossEntropyStatisticsBackward {
  CrossEntropyStatistics statistics;
  double scale = 1.0;
  double z_loss = 0.0;
};

/// Lists the tokens whose labels count, in their order, for losses of few tokens: writes rows[i],
/// the i-th such token, and selected[i], its label, and -1 to both behind the last; and places[t],
/// the i of token t, or -1. labels, places [tokens]; rows, selected [capacity]; all int32 in the
/// backend's memory. More such tokens than `capacity` are an InternalError on the host and a failed
/// kernel on CUDA.
struct SelectLabels {
  const std::int32_t* labels = nullptr;
  std::int64_t tokens = 0;
  std::int32_t* rows = nullptr;
  std::int32_t* selected = nullptr;
  std::int64_t capacity = 0;
  std::int32_t* places = nullptr;
};

namespace host {
void select_labels(const SelectLabels& args);
void cross_entropy_statistics_backward(const CrossEntropyStatisticsBackward& args);
void cross_entropy_statistics(const CrossEntropyStatistics& args);
void cross_entropy_rescale(const CrossEntropyRescale& args);
void cross_entropy_loss(const CrossEntropyLoss& args);
void cross_entropy_backward(const CrossEntropyBackward& args);
}  // namespace host

namespace cuda {
void select_labels(const SelectLabels& args, const Context& context);
void cross_entropy_statistics_backward(const CrossEntropyStatisticsBackward& args,
                                       const Context& context);
void cross_entropy_statistics(const CrossEntropyStatistics& args, const Context& context);
void cross_entropy_rescale(const CrossEntropyRescale& args, const Context& context);
void cross_entropy_loss(const CrossEntropyLoss& args, const Context& context);
void cross_entropy_backward(const CrossEntropyBackward& args, const Context& context);
}  // namespace cuda

}  // namespace trireme::kernels
