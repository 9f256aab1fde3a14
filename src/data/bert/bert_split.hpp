// Opens one split of a BERT run's data, from one or several datasets of sentences or from record
// files.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/bert/pair_samples.hpp"
#include "data/dataset.hpp"
#include "deck/choices.hpp"

namespace trireme::data {

/// How samples are made: PairSamples (megatron), FirstReleaseSamples (v0), RecordSamples
/// (tfrecord).
using deck::BertDialect;

/// All that decides the samples of one split of a run's data.
struct BertSplitConfig {
  BertDialect dialect = BertDialect::megatron;
  std::vector<std::string> names;  ///< prefixes of datasets; tfrecord: files or patterns
  /// One for each name, above 0: a blend by Megatron-LM's rule, in which datasets are repeated.
  /// Empty: v0 and tfrecord put the datasets one after the other and take them as often as need be;
  /// megatron uses each sample once, a dataset alone as often as need be.
  std::vector<double> weights;
  /// All else. Its prefix is left empty. tfrecord: split_weights is empty or gives this split all,
  /// and the order of train alone is shuffled; pairs and index_files do not apply.
  PairSplitConfig common;
  std::int64_t vocab = 0;  ///< model.vocab, which bounds the ids of record files

  /// Whether datasets are mixed by an index.
  bool is_blend() const;
};

/// Dataset `which` of a blend alone, with the samples that it gives, as dataset_config() of GPT's.
BertSplitConfig part_config(const BertSplitConfig& config, std::size_t which);

/// Describes a split without building anything. Record files count as documents of one example;
/// their tokens are those of full sequences. Throws as the openers of the dialect do, and DeckError
/// for weights with v0, for datasets without weights that hold fewer samples than the run takes,
/// and for record files that would have to be divided.
BlendSummary summarize_bert_split(const BertSplitConfig& config);

/// Opens a split. Collective like open_gpt_blend(). Throws as summarize_bert_split().
std::unique_ptr<const Dataset> open_bert_split(const BertSplitConfig& config,
                                               const IndexBuilder& builder = {});

}  // namespace trireme::data
