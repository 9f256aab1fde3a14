// Vocabulary-parallel cross entropy in three local steps; the caller reduces over the tensor group
// between them. Source: Megatron-LM (Shoeybi et al. 2019), section 3. Shard columns: the local
// logits hold columns first_column .. first_column + columns - 1 of the vocabulary, then padding
// columns, which never enter the softmax. logits [T, local columns with padding]; max, sum, target
// [T] of the logits' type; labels [T] int32 in the backend's memory, -1 where a token is ignored.
#pragma once

#include <cstdint>

#include "device/tensor.hpp"

namespace trireme::kernels {

/// Writes max[t], the largest logit of the shard's columns (-infinity when it has none). All-reduce
/// with max afterwards.
struct CrossEntropyMax {
  Tensor logits;
  std::int64_t columns = 0;
  Tensor max;
};

/// Writes sum[t] = sum over the shard's columns of exp(logit - max[t]), and target[t] =
/// logit[label] when the label's column is here, else 0. All-reduce both with sum afterwards.
struct CrossEntropySum {
  Tensor logits;
  std::int64_t first_column = 0;
  std::int64_t columns = 0;
  const std::int32_t* labels = nullptr;
  Tensor max;
  Tensor sum;
  Tensor target;
};

/// Adds the loss of the tokens that count, sum of log(sum[t]) + max[t] - target[t], to loss [1]
/// f64.
struct CrossEntropyLoss {
  const std::int32_t* labels = nullptr;
  Tensor max;
  Tensor sum;
  Tensor target;
  Tensor loss;
};

/// Writes d(scale * loss)/d(logits) over the logits, in place; zero for ignored tokens and padding
/// columns.
struct CrossEntropyBackward {
  Tensor logits;
  std::int64_t first_column = 0;
  std::int64_t columns = 0;
  const std::int32_t* labels = nullptr;
  Tensor max;
  Tensor sum;
  double scale = 1.0;
};

namespace host {
void cross_entropy_max(const CrossEntropyMax& args);
void cross_entropy_sum(const CrossEntropySum& args);
void cross_entropy_loss(const CrossEntropyLoss& args);
void cross_entropy_backward(const CrossEntropyBackward& args);
}  // namespace host
}  // namespace trireme::kernels
