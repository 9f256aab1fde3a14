// Megatron-LM's sentence-pair map: which consecutive sentences of a document make up sample i. The
// sequences of the dataset are sentences, as trireme-preprocess --split-sentences writes them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/bert/sample.hpp"
#include "data/gpt/gpt_split.hpp"
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

// Megatron-LM's BERT samples (bert_dataset.py): consecutive sentences of a document, divided into
// two segments that are swapped half of the time (sentence order), or one segment.

/// All that decides the samples of one split of a dataset of sentences.
struct PairSplitConfig {
  std::filesystem::path prefix;       ///< with or without ".bin" or ".idx"
  std::vector<double> split_weights;  ///< of train, valid and test; empty: the split is all of it
  Split split = Split::train;
  std::optional<std::int64_t> samples;  ///< that the run takes; absent: one epoch
  std::int64_t seed = 1234;             ///< data.seed
  double short_probability = 0.1;
  bool pairs = true;  ///< two segments and a sentence label; false: one segment
  BertFormat format;
  std::filesystem::path index_cache;  ///< data.index_cache; empty: the folder of the dataset
  /// data.index_files: existing PREFIX_SPLIT_indexmap_....npy maps, separated by commas. The one
  /// that names this split is used instead of building.
  std::string index_files;
};

/// Sample i is row i of the map, drawn from RandomState(seed + i) as Megatron-LM draws it.
class PairSamples : public BertDataset {
 public:
  /// `map` fits `dataset` (check_pair_map). Throws as check_bert_format() does.
  PairSamples(std::shared_ptr<const IndexedDataset> dataset, NpyArray map, BertFormat format,
              bool pairs, std::int64_t seed);

  std::int64_t samples() const override { return map_.rows(); }
  void require_unchanged() const override { dataset_->require_unchanged(); }
  const NpyArray& map() const { return map_; }

 private:
  void fill(std::int64_t i, BertSample& sample) const override;
  std::shared_ptr<const IndexedDataset> dataset_;
  NpyArray map_;
  BertFormat format_;
  bool pairs_;
  std::int64_t seed_;
};

/// The map's configuration for a split of an open dataset. Throws as normalize_weights() does.
PairMapConfig pair_map_config(const PairSplitConfig& config, const IndexedDataset& dataset);

/// Opens a split. Collective: every process calls it with the same configuration and its own
/// `builder`. The map is kept under Megatron-LM's name (indexmap_file()) in data.index_cache or the
/// dataset's folder: a file of that name whose rows are this split's is used, wherever it comes
/// from; where there is none, the builder writes it. A file of that name with other rows (another
/// split or task: the name does not tell) stays as it is, and the map gets a name with a hash.
/// Throws IoError that names data.index_cache when the map cannot be written, DeckError for bad
/// keys, DataError for bad files; a process that throws does not reach the barrier.
std::unique_ptr<PairSamples> open_pair_split(const PairSplitConfig& config,
                                             const IndexBuilder& builder = {});

}  // namespace trireme::data
