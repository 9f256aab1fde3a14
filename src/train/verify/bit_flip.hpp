// A bit flip that tests order, to see whether train.verify finds it.
#pragma once

#include <cstdint>
#include <string>

#include "core/tensor.hpp"
#include "device/backend.hpp"

namespace trireme::train {

/// What train.verify.inject says: "gradients rank=1 iteration=5 bit=30 times=2".
struct BitFlip {
  /// Whose element is changed: a weight, before the passes; a gradient of a layer, when the passes
  /// have completed it; an activation that leaves a chunk of layers; or a reduced gradient, as a
  /// damaged message of the reduction.
  enum class Target { weights, gradients, activations, messages };
  Target target = Target::weights;
  int rank = 0;
  std::int64_t iteration = 1;
  int bit = 30;  ///< of the element; a smaller type's highest bit but one
  std::int64_t times =
      1;  ///< runs of the passes, from that iteration on; each flips the next lower bit
  std::int64_t element = 0;  ///< its number in the tensor

  /// Throws DeckError naming the key and what it takes.
  static BitFlip parse(const std::string& text);
  /// Flips the bit in `tensor`, which lies in the memory of `backend`.
  void apply(device::Backend& backend, const Tensor& tensor) const;
};

}  // namespace trireme::train
