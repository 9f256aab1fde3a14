// Megatron-LM's BERT samples (bert_dataset.py): consecutive sentences of a document, divided into
// two segments that are swapped half of the time (sentence order), or one segment.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/bert/pair_map.hpp"
#include "data/bert/sample.hpp"
#include "data/gpt/gpt_split.hpp"

namespace trireme::data {

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
