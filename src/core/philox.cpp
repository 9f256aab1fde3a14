#include "core/philox.hpp"

namespace trireme {

double philox_normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  return standard_normal(named_words(seed, stream, index));
}

double philox_uniform(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  const Philox4 words = named_words(seed, stream, index);
  return to_unit(words.x, words.y);
}

std::uint64_t name_hash(const char* name) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (; *name; ++name) hash = (hash ^ static_cast<unsigned char>(*name)) * 0x100000001b3ull;
  return hash;
}

// The probability by Kummer's series: phi(x) (x + x^3 / 3 + x^5 / (3 5) + ...), whose terms are
// positive, as are those of exp(x^2 / 2).
NormalCutoff cutoff_at(double at) {
  constexpr double kInverseSqrt2Pi = 0.3989422804014327;
  const double square = exact::multiply(at, at);
  double term = at, sum = at, power = 1.0, exponential = 1.0;
  for (int k = 1; k <= 150; ++k) {  // the last terms are below 2^-60 of the sums
    term = exact::multiply(term, exact::divide(square, 2 * k + 1));
    sum = exact::add(sum, term);
    power = exact::multiply(power, exact::divide(square, 2 * k));
    exponential = exact::add(exponential, power);
  }
  return {at, exact::multiply(kInverseSqrt2Pi, exact::divide(sum, exponential))};
}

}  // namespace trireme
