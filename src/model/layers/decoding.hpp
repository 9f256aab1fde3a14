// How passes over new tokens, with cached keys and values, run their linears.
#pragma once

#include "model/context.hpp"

namespace trireme::model {

/// New tokens up to which linears are kernels::DecodeLinear, fused with norms, biases and residual
/// sums; GEMMs and kernels of their own are faster from 2 on. Measured on one H200 in bf16, ms a
/// pass over 2, 4 and 8 tokens: 1.5B by DecodeLinear 2.63, 3.06 and 3.67, by GEMMs of as many rows
/// 2.53, 2.76 and 2.99, of 16 rows (generate::BatchDecoder) 2.43, 2.44 and 2.46.
inline constexpr std::int64_t kMaxFusedTokens = 1;

/// Whether a pass of `context` runs kernels::DecodeLinear.
inline bool decodes_fused(const LayerContext& context) {
  return context.tokens() <= kMaxFusedTokens;
}

}  // namespace trireme::model
