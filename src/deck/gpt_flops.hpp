// The FLOPs of a GPT-2, by which speed is reported, also from the log of a run.
#pragma once

#include <cstdint>

namespace trireme::deck {

/// Floating-point operations per token of one training iteration of a GPT, forward and backward:
/// l (24 h^2 + 12 h f + 6 s h) + 6 V h for an MLP of `ffn` = f; with f = 4 h this is the published
/// 72 l h^2 (1 + s / (12 h) + V / (12 l h)). Causal attention counts half of s x s; recomputation
/// counts nothing. Source: Narayanan et al., "Efficient large-scale language model training on GPU
/// clusters" (SC 2021), its factor 96 without recomputation and its attention halved.
constexpr double gpt_flops_per_token(std::int64_t layers, std::int64_t hidden, std::int64_t ffn,
                                     std::int64_t sequence, std::int64_t vocab) {
  const double l = static_cast<double>(layers), h = static_cast<double>(hidden);
  const double f = static_cast<double>(ffn), s = static_cast<double>(sequence);
  const double v = static_cast<double>(vocab);
  return l * (24 * h * h + 12 * h * f + 6 * s * h) + 6 * v * h;
}

}  // namespace trireme::deck
