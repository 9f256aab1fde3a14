// GPT-2 124M at micro-batch 4 and sequence 256, and its GEMMs.
#pragma once

#include <array>
#include <cstdint>

#include "bench/table.hpp"

namespace trireme::bench {

inline constexpr std::int64_t kBatch = 4, kSequence = 256, kTokens = kBatch * kSequence;
inline constexpr std::int64_t kHidden = 768, kHeads = 12, kLayers = 12, kFfn = 4 * kHidden;
inline constexpr std::int64_t kVocabulary = 50257, kPaddedVocabulary = 50304;
inline constexpr double kParameters = 124.44e6;

/// A linear layer y [T, out] = x [T, in] weight^T, weight [out, in].
struct Linear {
  const char* name;
  std::int64_t in, out;
  double count;  ///< in the model
};

inline constexpr std::array<Linear, 5> kLinears = {{{"qkv", kHidden, 3 * kHidden, kLayers},
                                                    {"projection", kHidden, kHidden, kLayers},
                                                    {"fc1_out", kHidden, kFfn, kLayers},
                                                    {"down", kFfn, kHidden, kLayers},
                                                    {"logits", kHidden, kPaddedVocabulary, 1}}};

/// Measures the forward GEMM, the input gradient and the weight gradient of every linear layer.
void measure_gemms(Meter& meter);

}  // namespace trireme::bench
