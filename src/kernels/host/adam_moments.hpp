// The moments of Adam, which AdamW and LAMB have in common.
#pragma once

#include <cmath>
#include <utility>

#include "kernels/preconditions.hpp"

namespace trireme::kernels::host {

/// How an update moves the two moments of an element, in the type T. `args` is an AdamW or a
/// LambDirection.
template <typename T>
struct AdamMoments {
  T beta1, rest1, beta2, rest2, eps;
  T correction;  ///< 1 / sqrt(1 - beta2^step)

  template <typename Args>
  explicit AdamMoments(const Args& args)
      : beta1(static_cast<T>(args.beta1)),
        rest1(static_cast<T>(1.0 - args.beta1)),
        beta2(static_cast<T>(args.beta2)),
        rest2(static_cast<T>(1.0 - args.beta2)),
        eps(static_cast<T>(args.eps)),
        correction(static_cast<T>(
            1.0 / std::sqrt(1.0 - std::pow(args.beta2, static_cast<double>(args.step))))) {}

  /// Takes the gradient g into m and v. Returns m / (sqrt(v / (1 - beta2^step)) + eps), which lacks
  /// the correction of m.
  T move(T g, T& m, T& v) const {
    m = beta1 * m + rest1 * g;
    v = beta2 * v + rest2 * (g * g);
    return m / (std::sqrt(v) * correction + eps);
  }
};

/// Throws InternalError unless the tensors of `args`, as above, are of one size and type, and
/// updates count from 1.
template <typename Args>
void check_adam(const char* op, const Args& args) {
  for (const auto& [name, tensor] : {std::pair{"weight", args.weight},
                                     {"gradient", args.gradient},
                                     {"m", args.m},
                                     {"v", args.v}})
    check_vector(op, name, tensor, args.weight.dtype, args.weight.size());
  TRIREME_CHECK(args.step >= 1, "{}: step {}, but updates count from 1", op, args.step);
}

}  // namespace trireme::kernels::host
