// Similarity of texts: sets of shingles, their Jaccard similarity, MinHash signatures and bands.
// Source: Broder, "On the resemblance and containment of documents" (1997); Leskovec, Rajaraman,
// Ullman, "Mining of Massive Datasets", chapter 3.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "corpus/stream.hpp"

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

// Duplicate documents: exact copies, and near copies by MinHash and locality-sensitive hashing as
// in Megatron-LM's tools/openwebtext (find_duplicates, group_duplicate_url,
// remove_group_duplicates). Also shuffling, the step after it.

/// Options of dedup().
struct DedupOptions {
  StreamOptions stream;
  std::uint64_t seed = 1234;
  bool near = true;  ///< false: exact copies only
  int hashes = 100;  ///< of a signature; a multiple of `bands`
  int bands = 10;    ///< documents that share a band are compared
  JaccardRule rule = JaccardRule::union_of_both;
  double similar = 0.5;    ///< above this a document leaves the bucket it was compared in
  double duplicate = 0.8;  ///< from this on two documents are of one group
  int rounds = 1;  ///< documents per bucket that all others of it are compared with; -1: all
};

/// Writes the documents without copies: of each group of duplicates the first. Reasons are "exact
/// duplicate" and "near duplicate"; dropped documents have "duplicate_of", the number of the kept
/// document among all that were read, from 1. Keeps about 150 bytes per document in memory, and the
/// text in a temporary file next to the output. Throws as for_each_document(), and UsageError for
/// options out of range.
Report dedup(const DedupOptions& options);

/// Options of shuffle().
struct ShuffleOptions {
  tokenizer::DocumentSource source;
  std::filesystem::path output;
  std::uint64_t seed = 1234;
  std::FILE* progress = nullptr;
};

/// Writes the lines of all inputs in a random order that depends on the seed and their number
/// alone. Keeps 1/256 of the text in memory, and all of it in temporary files next to the output.
/// Returns the number of lines. Throws what reading and writing throw; DataError for a line of JSON
/// lines that is no JSON object and when there is no line.
std::uint64_t shuffle(const ShuffleOptions& options);

}  // namespace trireme::corpus
