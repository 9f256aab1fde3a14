#include "corpus/minhash.hpp"

#include <algorithm>
#include <cstring>

#include "corpus/stream.hpp"

namespace trireme::corpus {
namespace {

constexpr std::size_t kShingleCharacters = 5;

}  // namespace

std::vector<std::uint64_t> shingles(std::string_view text) {
  std::vector<std::size_t> starts;  // of the characters
  starts.reserve(text.size());
  for (std::size_t at = 0; at < text.size(); ++at)
    if ((text[at] & 0xC0) != 0x80) starts.push_back(at);
  std::vector<std::uint64_t> set;
  if (starts.size() <= kShingleCharacters) return set;
  set.reserve(starts.size() - kShingleCharacters);
  for (std::size_t i = 0; i + kShingleCharacters < starts.size(); ++i) {
    // At most 20 bytes: three words.
    std::uint64_t words[3] = {};
    const std::size_t bytes = starts[i + kShingleCharacters] - starts[i];
    std::memcpy(words, text.data() + starts[i], bytes);
    std::uint64_t hash = mix64(words[0] ^ bytes << 56);
    if (bytes > 8) hash = mix64(mix64(hash ^ words[1]) ^ words[2]);
    set.push_back(hash);
  }
  std::ranges::sort(set);
  const auto rest = std::ranges::unique(set);
  set.erase(rest.begin(), rest.end());
  return set;
}

double jaccard(const std::vector<std::uint64_t>& a, const std::vector<std::uint64_t>& b,
               JaccardRule rule) {
  if (a.empty() || b.empty()) return 0;
  std::size_t common = 0;
  for (auto i = a.begin(), j = b.begin(); i != a.end() && j != b.end();) {
    common += *i == *j;
    const bool step_a = *i <= *j, step_b = *j <= *i;
    i += step_a;
    j += step_b;
  }
  const std::size_t whole = rule == JaccardRule::smaller  ? std::min(a.size(), b.size())
                            : rule == JaccardRule::larger ? std::max(a.size(), b.size())
                                                          : a.size() + b.size() - common;
  return static_cast<double>(common) / static_cast<double>(whole);
}

MinHash::MinHash(std::uint64_t seed, int hashes) {
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(hashes); ++i)
    functions_.push_back({mix64(mix64(seed) + 2 * i) | 1, mix64(mix64(seed) + 2 * i + 1)});
}

std::vector<std::uint32_t> MinHash::signature(const std::vector<std::uint64_t>& shingles) const {
  // Multiply-shift hashing: the upper 32 bits of multiplier * shingle + offset.
  std::vector<std::uint32_t> minima(functions_.size(), ~std::uint32_t{0});
  for (std::size_t f = 0; f < functions_.size(); ++f) {
    std::uint64_t minimum = ~std::uint64_t{0};
    for (const std::uint64_t shingle : shingles)
      minimum = std::min(minimum, functions_[f].multiplier * shingle + functions_[f].offset);
    minima[f] = static_cast<std::uint32_t>(minimum >> 32);
  }
  return minima;
}

std::vector<std::uint64_t> MinHash::bands(const std::vector<std::uint32_t>& signature, int bands) {
  const std::size_t rows = signature.size() / static_cast<std::size_t>(bands);
  std::vector<std::uint64_t> hashes;
  for (std::size_t band = 0; band < static_cast<std::size_t>(bands); ++band) {
    std::uint64_t hash = band;
    for (std::size_t row = 0; row < rows; ++row) hash = mix64(hash ^ signature[band * rows + row]);
    hashes.push_back(hash);
  }
  return hashes;
}

}  // namespace trireme::corpus
