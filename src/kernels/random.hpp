// Random tensors: initial weights.
#pragma once

#include <cstdint>

#include "core/philox.hpp"
#include "core/tensor.hpp"
#include "kernels/cuda/context.hpp"

namespace trireme::kernels {

/// Writes deviation * philox_normal(seed, stream, index) to a rectangle of a matrix of `width`
/// columns: element (i, j) of out [rows, columns] has the index (row + i) * width + column + j.
/// With a cut-off, deviation * truncated_normal() instead. The same bits on every backend. out:
/// fp32 or fp64, rounded once from fp64; of 16 bits, from fp32.
struct RandomNormal {
  Tensor out;
  double deviation = 1.0;
  NormalCutoff cutoff;  ///< in units of `deviation`
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;
  std::int64_t row = 0;
  std::int64_t column = 0;
  std::int64_t width = 1;
};

/// What element `i` of RandomNormal's out, whose rows have `columns`, has of its random numbers.
TRIREME_HOST_DEVICE inline double random_normal_value(const RandomNormal& args,
                                                      std::int64_t columns, std::int64_t i) {
  const std::int64_t index = (args.row + i / columns) * args.width + args.column + i % columns;
  const Philox4 words = named_words(args.seed, args.stream, static_cast<std::uint64_t>(index));
  return exact::multiply(args.deviation, args.cutoff.at > 0 ? truncated_normal(words, args.cutoff)
                                                            : standard_normal(words));
}

namespace host {
void random_normal(const RandomNormal& args);
}

namespace cuda {
void random_normal(const RandomNormal& args, const Context& context);
}

}  // namespace trireme::kernels
