#include "core/philox.hpp"

#include "core/normal.hpp"

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

}  // namespace trireme
