// Similarity of texts: sets of shingles, their Jaccard similarity, MinHash signatures and bands.
// Source: Broder, "On the resemblance and containment of documents" (1997); Leskovec, Rajaraman,
// Ullman, "Mining of Massive Datasets", chapter 3.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace trireme::corpus {

/// The set of hashes of all runs of 5 characters of valid UTF-8, sorted, each once. As in
/// Megatron-LM's find_duplicates.py the last run is left out, and a text of 5 characters or fewer
/// has none.
std::vector<std::uint64_t> shingles(std::string_view text);

/// What the size of the intersection is divided by.
enum class JaccardRule { union_of_both, smaller, larger };

/// The similarity of two sets of shingles, 0 to 1; 0 when one is empty.
double jaccard(const std::vector<std::uint64_t>& a, const std::vector<std::uint64_t>& b,
               JaccardRule rule);

/// A family of `hashes` hash functions that `seed` selects.
class MinHash {
 public:
  MinHash(std::uint64_t seed, int hashes);

  /// For each function its minimum over the set: two sets have equal minima with the probability
  /// of their Jaccard similarity (by the union).
  std::vector<std::uint32_t> signature(const std::vector<std::uint64_t>& shingles) const;

  /// One hash for each of `bands` equal parts of a signature. Two texts of similarity s share at
  /// least one band with probability 1 - (1 - s^rows)^bands, rows = hashes / bands.
  static std::vector<std::uint64_t> bands(const std::vector<std::uint32_t>& signature, int bands);

 private:
  struct Function {
    std::uint64_t multiplier, offset;
  };
  std::vector<Function> functions_;
};

/// Sets that grow together: groups of documents.
class Groups {
 public:
  explicit Groups(std::size_t size) : parents_(size) {
    for (std::size_t i = 0; i < size; ++i) parents_[i] = static_cast<std::uint32_t>(i);
  }
  /// The first document of the group of `i`.
  std::uint32_t first(std::uint32_t i) {
    while (parents_[i] != i) i = parents_[i] = parents_[parents_[i]];
    return i;
  }
  /// Joins the groups of `a` and `b`.
  void join(std::uint32_t a, std::uint32_t b) {
    a = first(a), b = first(b);
    (a < b ? parents_[b] : parents_[a]) = a < b ? a : b;
  }

 private:
  std::vector<std::uint32_t> parents_;
};

}  // namespace trireme::corpus
