// Counting zeros in a flat buffer.
#pragma once

#include "core/tensor.hpp"
#include "kernels/adamw.hpp"

namespace trireme::kernels {

/// Adds the number of `counted` elements of x [n], of an accumulation type, that are zero (of
/// either sign) to out [1] f64, exactly up to 2^53.
struct ZeroCount {
  Tensor x;
  Tensor out;
  Stretches counted;
};

namespace host {
void zero_count(const ZeroCount& args);
}  // namespace host

namespace cuda {
void zero_count(const ZeroCount& args, const Context& context);
}  // namespace cuda
}  // namespace trireme::kernels
