// The element types of a training run, one for each role of a tensor.
#pragma once

#include "core/dtype.hpp"

namespace trireme {

/// Each role of a tensor has its own type, so that one of them can change alone: gradients in 16
/// bits, GEMM operands in 8. plan::precision() makes it from the deck's `precision` section.
struct Precision {
  DType weights = DType::f32;      ///< as passes read them
  DType activations = DType::f32;  ///< that passes write and ranks exchange, and their gradients
  DType gemm = DType::f32;  ///< operands of the blocks' linears: the activations' type or FP8
  DType gemm_gradients = DType::f32;  ///< the same of those GEMMs' gradient operands
  DType gradients = DType::f32;       ///< of layers' matrices, as passes sum them
  DType master = DType::f32;          ///< weights as updates and checkpoints have them, and the
                                      ///< gradients of all but layers' matrices
  DType moments = DType::f32;         ///< optimizer state; so far always the master weights' type

  bool operator==(const Precision&) const = default;
};

/// Passes compute in `compute`; gradients are summed, and weights updated, in its accumulation
/// type. Source: Micikevicius et al., "Mixed precision training" (2018).
constexpr Precision mixed_precision(DType compute) {
  const DType sums = accumulation_type(compute);
  return {.weights = compute,
          .activations = compute,
          .gemm = compute,
          .gemm_gradients = compute,
          .gradients = sums,
          .master = sums,
          .moments = sums};
}

}  // namespace trireme
