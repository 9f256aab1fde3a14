#include "core/philox.hpp"

#include <numbers>

namespace trireme {
namespace {

// Keeps initialisation and sampling apart from dropout, whose keys are the bare seed.
constexpr std::uint64_t kNamedStreams = 0x5452'4952'454D'4531ull;

Philox4 named_words(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  return philox({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                 static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)},
                seed ^ kNamedStreams);
}

double to_unit(std::uint32_t high, std::uint32_t low) {
  return ((high >> 5) * 67108864.0 + (low >> 6)) * 0x1p-53;
}

}  // namespace

double philox_normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  const Philox4 words = named_words(seed, stream, index);
  const double radius = std::sqrt(-2.0 * std::log1p(-to_unit(words.x, words.y)));
  return radius * std::cos(2.0 * std::numbers::pi * to_unit(words.z, words.w));
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

}  // namespace trireme
