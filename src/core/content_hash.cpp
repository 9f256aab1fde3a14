#include "core/content_hash.hpp"

#include <array>
#include <bit>
#include <cstring>

namespace trireme {
namespace {

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  constexpr std::uint32_t kPolynomial = 0x82F63B78;  // Castagnoli's, bits reversed
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? kPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}

}  // namespace

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

std::uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<std::uint32_t, 256> kTable = make_crc_table();
  std::uint32_t crc = 0xFFFFFFFFu;
  for (const char byte : bytes)
    crc = crc >> 8 ^ kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xFF];
  return ~crc;
}

std::uint32_t masked_crc32c(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xA282EAD8u;
}

}  // namespace trireme
