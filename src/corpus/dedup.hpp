// Duplicate documents: exact copies, and near copies by MinHash and locality-sensitive hashing as
// in Megatron-LM's tools/openwebtext (find_duplicates, group_duplicate_url,
// remove_group_duplicates). Also shuffling, the step after it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "corpus/minhash.hpp"
#include "corpus/stream.hpp"

namespace trireme::corpus {

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
