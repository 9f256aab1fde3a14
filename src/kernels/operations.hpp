// The one list of operations, from which the methods of the backends and their NVTX ranges are
// generated.
#pragma once

#include "kernels/attention.hpp"
#include "kernels/decoding.hpp"
#include "kernels/linear.hpp"
#include "kernels/norms.hpp"
#include "kernels/optimizer.hpp"
#include "kernels/vocabulary.hpp"

/// Calls X(name, Arguments) for each operation that is a GEMM, alone or with something fused to it:
/// host::name(args) on the host, a method of GemmRunner on CUDA, which chooses the algorithm.
#define TRIREME_GEMM_OPERATIONS(X)              \
  X(gemm, Gemm)                                 \
  X(linear_gelu, LinearGelu)                    \
  X(linear_gelu_gradient, LinearGeluGradient)   \
  X(linear_gated, LinearGated)                  \
  X(linear_gated_gradient, LinearGatedGradient) \
  X(linear_weight_gradient, LinearWeightGradient)

/// The same for all other operations: host::name(args), and cuda::name(args, context).
#define TRIREME_KERNEL_OPERATIONS(X)                                   \
  X(embedding_forward, EmbeddingForward)                               \
  X(embedding_backward, EmbeddingBackward)                             \
  X(position_dropout, PositionDropout)                                 \
  X(position_backward, PositionBackward)                               \
  X(layernorm_forward, LayerNormForward)                               \
  X(layernorm_backward, LayerNormBackward)                             \
  X(bias_gradient, BiasGradient)                                       \
  X(gelu_forward, GeluForward)                                         \
  X(gelu_backward, GeluBackward)                                       \
  X(gated_forward, GatedForward)                                       \
  X(gated_backward, GatedBackward)                                     \
  X(rotary, Rotary)                                                    \
  X(qk_norm_sums, QkNormSums)                                          \
  X(qk_norm_forward, QkNormForward)                                    \
  X(qk_norm_backward, QkNormBackward)                                  \
  X(bias_dropout_residual, BiasDropoutResidual)                        \
  X(bias_dropout_residual_norm, BiasDropoutResidualNorm)               \
  X(dropout_backward, DropoutBackward)                                 \
  X(attention_forward, AttentionForward)                               \
  X(attention_backward, AttentionBackward)                             \
  X(cache_append, CacheAppend)                                         \
  X(attention_paged, AttentionPaged)                                   \
  X(decode_linear, DecodeLinear)                                       \
  X(top_logits, TopLogits)                                             \
  X(cross_entropy_statistics, CrossEntropyStatistics)                  \
  X(cross_entropy_statistics_backward, CrossEntropyStatisticsBackward) \
  X(cross_entropy_rescale, CrossEntropyRescale)                        \
  X(cross_entropy_loss, CrossEntropyLoss)                              \
  X(cross_entropy_backward, CrossEntropyBackward)                      \
  X(select_labels, SelectLabels)                                       \
  X(adamw, AdamW)                                                      \
  X(sgd, Sgd)                                                          \
  X(lamb_direction, LambDirection)                                     \
  X(muon_momentum, MuonMomentum)                                       \
  X(muon_normalize, MuonNormalize)                                     \
  X(muon_polynomial, MuonPolynomial)                                   \
  X(scaled_copy, ScaledCopy)                                           \
  X(squared_sum, SquaredSum)                                           \
  X(cast, Cast)                                                        \
  X(amax, Amax)                                                        \
  X(quantize, Quantize)                                                \
  X(quantize_blocks, QuantizeBlocks)                                   \
  X(zero_count, ZeroCount)                                             \
  X(checksum, Checksum)                                                \
  X(random_normal, RandomNormal)

/// All of them.
#define TRIREME_OPERATIONS(X) TRIREME_GEMM_OPERATIONS(X) TRIREME_KERNEL_OPERATIONS(X)
