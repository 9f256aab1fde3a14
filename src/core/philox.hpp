// Counter-based random numbers: the same (key, counter) gives the same numbers on any rank, thread
// or device. Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC
// 2011), Philox4x32-10. And normal random numbers made from them.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define TRIREME_HOST_DEVICE __host__ __device__
#else
#define TRIREME_HOST_DEVICE
#endif

namespace trireme {

/// Four 32-bit words: a Philox counter or one draw.
struct Philox4 {
  std::uint32_t x, y, z, w;
};

/// One block of four uniform 32-bit words from the counter and the 64-bit key.
TRIREME_HOST_DEVICE inline Philox4 philox(Philox4 counter, std::uint64_t key) {
  std::uint32_t k0 = static_cast<std::uint32_t>(key);
  std::uint32_t k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter.x;
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * counter.z;
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter.y ^ k0, static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter.w ^ k1, static_cast<std::uint32_t>(a)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return counter;
}

/// Where dropout is applied in a transformer; part of the random counter.
enum class DropoutSite : std::uint32_t { embedding = 0, attention = 1, projection = 2, mlp = 3 };

/// Dropout of one site for one sample, keyed by the logical element, never by rank: no layout
/// changes a mask. Element e of the site (position * hidden + feature) is dropped when its 32-bit
/// word is below probability * 2^32; kept elements are scaled by 1 / (1 - probability). Attention,
/// whose e is (head * s + query) * s + key, draws otherwise: kernels/attention.hpp.
struct DropoutStream {
  std::uint64_t seed = 0;
  /// Index of the sample in the run (consumed samples before it), below 2^48.
  std::uint64_t sample = 0;
  std::uint32_t layer = 0;  ///< logical layer; 0 for the embedding
  DropoutSite site = DropoutSite::embedding;

  /// The words of elements 4 * block .. 4 * block + 3; block below 2^48.
  TRIREME_HOST_DEVICE Philox4 words(std::uint64_t block) const {
    return philox(
        {static_cast<std::uint32_t>(block),
         static_cast<std::uint32_t>((block >> 32) & 0xFFFF) |
             static_cast<std::uint32_t>((sample >> 32) & 0xFFFF) << 16,
         static_cast<std::uint32_t>(sample), layer << 2 | static_cast<std::uint32_t>(site)},
        seed);
  }
};

/// The threshold under which a word means "dropped": probability * 2^32, rounded.
TRIREME_HOST_DEVICE inline std::uint32_t dropout_threshold(double probability) {
  const double scaled = probability * 4294967296.0 + 0.5;
  return scaled >= 4294967295.0 ? 4294967295u : static_cast<std::uint32_t>(scaled);
}

/// Element `index` of the standard normal random tensor named by `stream` (a hash of the
/// parameter's logical name). Box-Muller on two 53-bit uniforms, one draw per element, in double.
double philox_normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t index);

/// Uniform in [0, 1) with 53 bits: number `index` of `stream`.
double philox_uniform(std::uint64_t seed, std::uint64_t stream, std::uint64_t index);

/// A stable 64-bit hash of a name (FNV-1a).
std::uint64_t name_hash(const char* name);

// ---- normal random numbers

// They are the same bits on every CPU and GPU: made with IEEE's exactly rounded operations alone,
// which neither compilers nor mathematical libraries change.
//
// Sources that call these are compiled with -ffp-contract=off. All functions are static, so that
// no source gets those of another one.

namespace exact {

#ifdef __CUDA_ARCH__
__device__ static inline double multiply(double a, double b) { return __dmul_rn(a, b); }
__device__ static inline double add(double a, double b) { return __dadd_rn(a, b); }
__device__ static inline double divide(double a, double b) { return __ddiv_rn(a, b); }
__device__ static inline double square_root(double a) { return __dsqrt_rn(a); }
#else
TRIREME_HOST_DEVICE static inline double multiply(double a, double b) { return a * b; }
TRIREME_HOST_DEVICE static inline double add(double a, double b) { return a + b; }
TRIREME_HOST_DEVICE static inline double divide(double a, double b) { return a / b; }
TRIREME_HOST_DEVICE static inline double square_root(double a) { return std::sqrt(a); }
#endif

/// coefficient + x * rest: a step of Horner's scheme.
TRIREME_HOST_DEVICE static inline double horner(double x, double rest, double coefficient) {
  return add(multiply(x, rest), coefficient);
}

/// The natural logarithm of x, which must be normal and positive, to 2 units in the last place:
/// with x = 2^e m, sqrt(1/2) < m <= sqrt(2), e log 2 + 2 artanh((m - 1) / (m + 1)).
TRIREME_HOST_DEVICE static inline double log(double x) {
  constexpr double kSqrt2 = 1.4142135623730951;
  // log 2 in two parts, the first with zeros at its end: its product with an exponent is exact.
  constexpr double kLog2High = 0x1.62e42feep-1, kLog2Low = 0x1.a39ef35793c76p-33;
  std::uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  bits = (bits & 0x000F'FFFF'FFFF'FFFFull) | 0x3FF0'0000'0000'0000ull;
  double m;
  std::memcpy(&m, &bits, sizeof m);
  if (m > kSqrt2) {
    m = multiply(m, 0.5);
    ++exponent;
  }
  const double s = divide(add(m, -1.0), add(m, 1.0));
  const double z = multiply(s, s);  // at most 0.0295: the next term of the series is below 2^-60
  double series = 1.0 / 21;
  series = horner(z, series, 1.0 / 19);
  series = horner(z, series, 1.0 / 17);
  series = horner(z, series, 1.0 / 15);
  series = horner(z, series, 1.0 / 13);
  series = horner(z, series, 1.0 / 11);
  series = horner(z, series, 1.0 / 9);
  series = horner(z, series, 1.0 / 7);
  series = horner(z, series, 1.0 / 5);
  series = horner(z, series, 1.0 / 3);
  const double twice = multiply(2.0, s);
  const double log_m = add(twice, multiply(twice, multiply(z, series)));
  return add(multiply(exponent, kLog2High), add(multiply(exponent, kLog2Low), log_m));
}

/// The cosine of `turns` full turns, 0 <= turns < 1, to 2 units in the last place of 1: Taylor's
/// series in the eighth of a turn that is left on either side of the nearest quarter.
TRIREME_HOST_DEVICE static inline double cos_turns(double turns) {
  constexpr double kHalfPi = 1.5707963267948966;
  const double quarters = multiply(turns, 4.0);
  const int quadrant = static_cast<int>(add(quarters, 0.5));
  const double y = multiply(add(quarters, -quadrant), kHalfPi);
  const double z = multiply(y, y);
  double result;
  if (quadrant % 2 == 0) {
    result = 1.0 / 20922789888000;  // 16!
    result = horner(z, result, -1.0 / 87178291200);
    result = horner(z, result, 1.0 / 479001600);
    result = horner(z, result, -1.0 / 3628800);
    result = horner(z, result, 1.0 / 40320);
    result = horner(z, result, -1.0 / 720);
    result = horner(z, result, 1.0 / 24);
    result = horner(z, result, -0.5);
    result = horner(z, result, 1.0);
  } else {
    result = 1.0 / 355687428096000;  // 17!
    result = horner(z, result, -1.0 / 1307674368000);
    result = horner(z, result, 1.0 / 6227020800);
    result = horner(z, result, -1.0 / 39916800);
    result = horner(z, result, 1.0 / 362880);
    result = horner(z, result, -1.0 / 5040);
    result = horner(z, result, 1.0 / 120);
    result = horner(z, result, -1.0 / 6);
    result = horner(z, result, 1.0);
    result = multiply(result, y);
  }
  return quadrant == 1 || quadrant == 2 ? -result : result;
}

}  // namespace exact

/// The 53 bits of two words as a number in [0, 1).
TRIREME_HOST_DEVICE static inline double to_unit(std::uint32_t high, std::uint32_t low) {
  return ((high >> 5) * 67108864.0 + (low >> 6)) * 0x1p-53;
}

/// A standard normal number from four random words, by Box-Muller.
TRIREME_HOST_DEVICE static inline double standard_normal(const Philox4& words) {
  const double logarithm = exact::log(1.0 - to_unit(words.x, words.y));
  return exact::multiply(exact::square_root(exact::multiply(-2.0, logarithm)),
                         exact::cos_turns(to_unit(words.z, words.w)));
}

/// Where a standard normal distribution is truncated, on either side.
struct NormalCutoff {
  double at = 0.0;         ///< standard deviations; 0: it is not truncated
  double half_mass = 0.0;  ///< the probability of [0, at]
};

/// The largest cut-off: beyond it lie 2e-9 of the distribution.
inline constexpr double kMaxNormalCutoff = 6.0;

/// The cut-off at `at`, of at most kMaxNormalCutoff; 0: none.
NormalCutoff cutoff_at(double at);

namespace exact {

/// The quotient of two polynomials of degree 7 in x, whose coefficients begin with that of x^7.
TRIREME_HOST_DEVICE static inline double quotient(double x, const double (&above)[8],
                                                  const double (&below)[8]) {
  double a = above[0], b = below[0];
  for (int i = 1; i < 8; ++i) {
    a = horner(x, a, above[i]);
    b = horner(x, b, below[i]);
  }
  return divide(a, b);
}

/// The number below which a standard normal one is with probability 1/2 + q, |q| < 1/2 - 1e-10, to
/// 16 digits. Source: Wichura, "Algorithm AS 241" (1988), PPND16, without its outermost tails.
TRIREME_HOST_DEVICE static inline double normal_quantile(double q) {
  const double side = q < 0 ? -q : q;
  if (side <= 0.425) {
    constexpr double kAbove[8] = {
        2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
        13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608};
    constexpr double kBelow[8] = {
        5226.495278852854561,  28729.085735721942674, 39307.89580009271061,  21213.794301586595867,
        5394.1960214247511077, 687.1870074920579083,  42.313330701600911252, 1.0};
    return multiply(q, quotient(add(0.180625, -multiply(q, q)), kAbove, kBelow));
  }
  constexpr double kAbove[8] = {7.7454501427834140764e-4, 0.0227238449892691845833,
                                0.24178072517745061177,   1.27045825245236838258,
                                3.64784832476320460504,   5.7694972214606914055,
                                4.6303378461565452959,    1.42343711074968357734};
  constexpr double kBelow[8] = {1.05075007164441684324e-9, 5.475938084995344946e-4,
                                0.0151986665636164571966,  0.14810397642748007459,
                                0.68976733498510000455,    1.6763848301838038494,
                                2.05319162663775882187,    1.0};
  const double r = add(square_root(-log(add(0.5, -side))), -1.6);
  const double x = quotient(r, kAbove, kBelow);
  return q < 0 ? -x : x;
}

}  // namespace exact

/// A normal number from four random words, two of which are used, of the distribution that is
/// truncated at `cutoff`: at most so large. By inversion, as torch.nn.init.trunc_normal_.
TRIREME_HOST_DEVICE static inline double truncated_normal(const Philox4& words,
                                                          const NormalCutoff& cutoff) {
  // The middle of one of 2^53 equal parts of (-1/2, 1/2), exactly.
  const double uniform = exact::add(exact::add(to_unit(words.x, words.y), -0.5), 0x1p-54);
  const double x = exact::normal_quantile(exact::multiply(uniform, 2 * cutoff.half_mass));
  return x > cutoff.at ? cutoff.at : x < -cutoff.at ? -cutoff.at : x;
}

/// The words of number `index` of the random tensor `stream`.
TRIREME_HOST_DEVICE static inline Philox4 named_words(std::uint64_t seed, std::uint64_t stream,
                                                      std::uint64_t index) {
  // Keeps initialisation and sampling apart from dropout, whose keys are the bare seed.
  constexpr std::uint64_t kNamedStreams = 0x5452'4952'454D'4531ull;
  return philox({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                 static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)},
                seed ^ kNamedStreams);
}

}  // namespace trireme
