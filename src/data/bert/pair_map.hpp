// Megatron-LM's sentence-pair map: which consecutive sentences of a document make up sample i. The
// sequences of the dataset are sentences, as trireme-preprocess --split-sentences writes them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "data/indexed_dataset.hpp"
#include "data/numpy.hpp"
#include "data/split.hpp"

namespace trireme::data {

/// What a map depends on in addition to the dataset.
struct PairMapConfig {
  SequenceRange documents;              ///< of the split: documents, not sentences
  std::optional<std::int64_t> samples;  ///< wanted; absent: one epoch
  std::int64_t sequence = 0;            ///< tokens of a sample with [CLS] and two [SEP]
  double short_probability = 0.1;       ///< share of samples with a random, shorter target
  bool pairs = true;                    ///< at least two sentences a sample; false: one
  std::int64_t seed = 1234;             ///< 0 .. kMaxPairMapSeed

  std::int64_t max_target() const { return sequence - 3; }
  std::int64_t min_sentences() const { return pairs ? 2 : 1; }
};

/// Megatron-LM's builder takes a signed 32-bit seed, and the next one for the shuffle.
inline constexpr std::int64_t kMaxPairMapSeed = 2147483646;
/// A document of several sentences is left out when one is longer.
inline constexpr std::int32_t kLongSentence = 512;

/// Size of a map, and why documents are not in it.
struct PairMapSummary {
  std::int64_t sentences = 0, tokens = 0;  ///< of all documents of the split
  std::int64_t too_short = 0;              ///< documents of fewer than min_sentences()
  std::int64_t with_long = 0;   ///< documents left out for a sentence of over kLongSentence
  std::int64_t epochs = 0;      ///< 0 when no document can be used
  std::int64_t rows = 0;        ///< at least the wanted samples, or 0
  std::uint64_t rows_hash = 0;  ///< of the rows in any order
};

/// Counts the rows of a map without building it: a pass over the sentences' lengths per epoch.
/// Throws DeckError for a seed, sequence or probability outside its range, and for more samples
/// than the host's memory holds.
PairMapSummary summarize_pair_map(const IndexedDataset& dataset, const PairMapConfig& config);

/// Throws DeckError when no document of the split can be a sample: says why.
void require_rows(const PairMapSummary& summary, const IndexedDataset& dataset,
                  const PairMapConfig& config);

/// The map [rows, 3], equal to build_mapping's of Megatron-LM (helpers.cpp): first sentence, last
/// sentence + 1 and target length of each sample, shuffled; uint32, or uint64 when the dataset has
/// more than 2^32 - 1 sentences. Throws as summarize_pair_map() and require_rows().
NpyArray build_pair_map(const IndexedDataset& dataset, const PairMapConfig& config);

/// Throws DataError that begins with `name` unless every row of a map from a file lies within one
/// document of the split, has min_sentences() and a target of 1 to max_target() tokens, and there
/// are `config.samples` rows at least.
void check_pair_map(const NpyArray& map, const IndexedDataset& dataset, const PairMapConfig& config,
                    const std::string& name);

/// Whether the rows of a map from a file are those that build_pair_map() gives, in any order.
bool has_rows_of(const NpyArray& map, const PairMapSummary& summary);

/// The file that Megatron-LM before its core keeps the map in, without its folder:
/// NAME_train_indexmap_64000mns_512msl_0.10ssp_1234s.npy, NAME being that of the dataset; _1ep in
/// place of _64000mns for one epoch.
std::string indexmap_file(const std::filesystem::path& prefix, Split split,
                          const PairMapConfig& config);

}  // namespace trireme::data
