// Scratch memory that operations need on a GPU, for Backend::reserve_workspace(). Arithmetic alone:
// memory plans for GPUs are made on machines without one. The host backend needs none.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.hpp"

namespace trireme::device {

/// Bytes for GEMMs, linear layers, GELU and gradients of biases, of which the longest has
/// `columns` elements.
std::size_t linear_workspace(std::int64_t columns);

/// Bytes for attention of `b` samples of `s` tokens, with `heads` local heads of dimension `d`,
/// which share `kv_heads` local heads of keys and values (0: have their own), and activations of
/// `dtype`.
std::size_t attention_workspace(DType dtype, std::int64_t s, std::int64_t b, std::int64_t heads,
                                std::int64_t d, std::int64_t kv_heads = 0);

/// Bytes for layer norms over `hidden` columns.
std::size_t layernorm_workspace(std::int64_t hidden);

/// Bytes for embeddings of `tokens` tokens with `hidden` columns.
std::size_t embedding_workspace(std::int64_t tokens, std::int64_t hidden);

/// Bytes for sums over whole buffers: the loss, gradient norms, counts of zeros.
std::size_t sum_workspace();

}  // namespace trireme::device
