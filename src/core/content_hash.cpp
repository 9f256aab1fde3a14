#include "core/content_hash.hpp"

#include <bit>
#include <cstring>

namespace trireme {

// Each step is a bijection of the state for a given word: two contents of which one word differs
// never share a hash. The multipliers are those of splitmix64 (Steele et al. 2014).
void ContentHash::mix(std::uint64_t word) {
  state_ = std::rotl(state_ ^ word * 0x9e3779b97f4a7c15u, 29) * 0xbf58476d1ce4e5b9u;
}

void ContentHash::add(const void* bytes, std::size_t size) {
  const char* at = static_cast<const char*>(bytes);
  std::uint64_t word = 0;
  std::size_t left = size;
  for (; left >= sizeof word; left -= sizeof word, at += sizeof word) {
    std::memcpy(&word, at, sizeof word);
    mix(word);
  }
  word = 0;
  if (left > 0) std::memcpy(&word, at, left);
  mix(word);
  mix(size);
}

std::uint64_t ContentHash::value() const {
  std::uint64_t hash = state_;
  hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9u;
  hash = (hash ^ hash >> 27) * 0x94d049bb133111ebu;
  return hash ^ hash >> 31;
}

}  // namespace trireme
