// Optimizer arithmetic over flat buffers: update rules, sums, casts; and random initial weights.
#pragma once

#include <cstdint>

#include "core/philox.hpp"
#include "core/tensor.hpp"
#include "kernels/cuda/context.hpp"

namespace trireme::kernels {

/// Which elements of a flat buffer an operation concerns: those with an odd number of bounds at or
/// below their index; every element when there are no bounds. bounds [count], ascending, in the
/// backend's memory.
struct IndexRanges {
  const std::int64_t* bounds = nullptr;
  std::int64_t count = 0;
};

/// One AdamW update of n elements, in place. The gradient is first multiplied by `gradient_scale`
/// (clipping, and the loss scale taken out).
///   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
///   w -= lr (m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + eps) + weight_decay w)
/// With `decay_in_gradient` it is Adam with L2 regularization: weight_decay w is added to g
/// instead. weight, gradient, m, v [n] of one accumulation type; `decayed` elements decay, the
/// others as if weight_decay were 0. `copy` [n], when given, receives the new weights rounded to
/// its 16-bit type. `step` counts updates from 1. Source: Loshchilov, Hutter, "Decoupled weight
/// decay regularization" (2019), algorithm 2.
struct AdamW {
  Tensor weight;
  Tensor gradient;
  Tensor m;
  Tensor v;
  Tensor copy;
  double learning_rate = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  bool decay_in_gradient = false;
  double gradient_scale = 1.0;
  std::int64_t step = 1;
  IndexRanges decayed;
};

/// Adds the sum of squares of the `counted` elements of x [n], of an accumulation type, to out [1]
/// f64. Sums in double in a fixed order.
struct SquaredSum {
  Tensor x;
  Tensor out;
  IndexRanges counted;
};

/// Writes out = x, rounded or widened to the type of out. x, out [n]; one of the two types is the
/// accumulation type of the other.
struct Cast {
  Tensor x;
  Tensor out;
};

namespace host {
void adamw(const AdamW& args);
void squared_sum(const SquaredSum& args);
void cast(const Cast& args);
}  // namespace host

namespace cuda {
void adamw(const AdamW& args, const Context& context);
void squared_sum(const SquaredSum& args, const Context& context);
void cast(const Cast& args, const Context& context);
}  // namespace cuda

/// Updates the moments of n elements as AdamW does, and writes over the gradient
///   u = m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + eps) + weight_decay w.
/// The caller steps each parameter by lr |w| / |u| along u, with Sgd. weight, gradient, m, v [n] of
/// one accumulation type; `decayed` and `step` as in AdamW. Source: You et al., "Large batch
/// optimization for deep learning: training BERT in 76 minutes" (2020), algorithm 2.
struct LambDirection {
  Tensor weight;
  Tensor gradient;
  Tensor m;
  Tensor v;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  double gradient_scale = 1.0;
  std::int64_t step = 1;
  IndexRanges decayed;
};

namespace host {
void lamb_direction(const LambDirection& args);
}
namespace cuda {
void lamb_direction(const LambDirection& args, const Context& context);
}

/// Muon's momentum of n elements, with g = gradient_scale * gradient:
///   m = momentum m + g;  out = g + momentum m with `nesterov`, else m
/// gradient, m [n] of one accumulation type; out [n] of it or of a 16-bit type of it, or empty:
/// then m alone is updated. Source: Jordan et al., "Muon" (2024); Liu et al., "Muon is scalable for
/// LLM training" (2025), section 2.
struct MuonMomentum {
  Tensor gradient;
  Tensor m;
  Tensor out;
  double momentum = 0.95;
  double gradient_scale = 1.0;
  bool nesterov = true;
};

/// Writes out = x / (|x| + 1e-7) with the Frobenius norm of x, summed in double in a fixed order.
/// x, out [n] of one type; out may be x.
struct MuonNormalize {
  Tensor x;
  Tensor out;
};

/// Writes out = a I + b gram + c gram_squared, all [r, r] of one type: the factor of one
/// Newton-Schulz iteration, X = out X with gram = X X^T. out may be gram or gram_squared.
struct MuonPolynomial {
  Tensor gram;
  Tensor gram_squared;
  Tensor out;
  double a = 1.0;
  double b = 0.0;
  double c = 0.0;
};

/// Writes out[i][j] = factor * x[i][j], rounded or widened to the type of out, for i < rows and
/// j < columns. Row i of x begins x_stride elements after row i - 1, and of out out_stride; out may
/// be x. Of the two types one is the accumulation type of the other, or they are equal.
struct ScaledCopy {
  Tensor x;
  Tensor out;
  std::int64_t rows = 1;
  std::int64_t columns = 0;
  std::int64_t x_stride = 0;
  std::int64_t out_stride = 0;
  double factor = 1.0;
};

namespace host {
void muon_momentum(const MuonMomentum& args);
void muon_normalize(const MuonNormalize& args);
void muon_polynomial(const MuonPolynomial& args);
void scaled_copy(const ScaledCopy& args);
}  // namespace host

namespace cuda {
void muon_momentum(const MuonMomentum& args, const Context& context);
void muon_normalize(const MuonNormalize& args, const Context& context);
void muon_polynomial(const MuonPolynomial& args, const Context& context);
void scaled_copy(const ScaledCopy& args, const Context& context);
}  // namespace cuda

/// One step of gradient descent on n elements, in place, with momentum where `m` is given:
///   g = gradient_scale * gradient + weight_decay w;  m = momentum m + g;  w -= lr m
/// and without it w -= lr g. weight, gradient, m [n] of one accumulation type; `decayed` and `copy`
/// as in AdamW. Source: PyTorch, torch.optim.SGD, without dampening.
struct Sgd {
  Tensor weight;
  Tensor gradient;
  Tensor m;
  Tensor copy;
  double learning_rate = 0.0;
  double momentum = 0.0;
  double weight_decay = 0.0;
  double gradient_scale = 1.0;
  IndexRanges decayed;
};

namespace host {
void sgd(const Sgd& args);
}
namespace cuda {
void sgd(const Sgd& args, const Context& context);
}

/// Adds the number of `counted` elements of x [n], of an accumulation type, that are zero (of
/// either sign) to out [1] f64, exactly up to 2^53.
struct ZeroCount {
  Tensor x;
  Tensor out;
  IndexRanges counted;
};

namespace host {
void zero_count(const ZeroCount& args);
}  // namespace host

namespace cuda {
void zero_count(const ZeroCount& args, const Context& context);
}  // namespace cuda

/// Adds a checksum of the bits of x [n], of any type, to *out modulo 2^64: the sum over i of the
/// element's bits, as a whole number, times checksum_weight(i). The weights are odd: a change of
/// one element always changes the sum. The order of terms does not, so that backends agree.
struct Checksum {
  Tensor x;
  std::uint64_t* out = nullptr;  ///< in the backend's memory
};

/// Of element `index`: the finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), made odd.
TRIREME_HOST_DEVICE constexpr std::uint64_t checksum_weight(std::uint64_t index) {
  std::uint64_t z = (index + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return (z ^ (z >> 31)) | 1;
}

namespace host {
void checksum(const Checksum& args);
}  // namespace host

namespace cuda {
void checksum(const Checksum& args, const Context& context);
}  // namespace cuda

// ---- random tensors: initial weights

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
