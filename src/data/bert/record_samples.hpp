// Samples that BERT's create_pretraining_data has made: masked already, in TensorFlow's record
// files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/bert/record_file.hpp"
#include "data/bert/sample.hpp"
#include "data/gpt/gpt_split.hpp"

namespace trireme::data {

/// What the samples of a split depend on.
struct RecordConfig {
  /// Files, or patterns such as wiki_*.tfrecord; a pattern's files in the order of their names.
  /// gzip is told by the first bytes.
  std::vector<std::string> files;
  std::optional<std::int64_t> samples;          ///< that the run takes; absent: one epoch
  std::int64_t sequence = 0;                    ///< model.sequence: the length of every example
  std::int64_t vocab = 0;                       ///< model.vocab: ids must be below
  std::optional<std::int64_t> max_predictions;  ///< the length of masked_lm_positions, if given
  bool shuffle = true;       ///< false: the order of the files, as evaluation takes it
  std::int64_t seed = 1234;  ///< data.seed
  /// data.index_cache: keeps the places of the records, and unpacked files; empty:
  /// default_index_cache() of each file.
  std::filesystem::path index_cache;
};

/// Sample i is record i mod n of epoch i / n, in an order drawn for the epoch. So the order depends
/// on the seed and the number of records, not on the layout or on restarts.
class RecordSamples : public BertDataset {
 public:
  /// `files` hold one record at least.
  RecordSamples(RecordConfig config, std::vector<RecordFile> files);

  std::int64_t samples() const override { return config_.samples.value_or(records()); }
  /// All records of all files.
  std::int64_t records() const { return first_record_.back(); }
  /// A hash of the records' places: other files give another one.
  std::uint64_t lengths_hash() const;
  void require_unchanged() const override;

 private:
  void fill(std::int64_t i, BertSample& sample) const override;
  RecordConfig config_;
  std::vector<RecordFile> files_;
  std::vector<std::int64_t> first_record_;  ///< [files + 1] among the records of all
};

/// Opens the files. Collective: every process calls it with the same configuration and its own
/// `builder`, which finds the records of each file and unpacks gzip, and keeps both in
/// data.index_cache until a file changes. Throws DeckError when a pattern matches no file or there
/// is no record, DataError for damaged files, IoError; a process that throws does not reach the
/// barrier.
std::unique_ptr<RecordSamples> open_records(const RecordConfig& config,
                                            const IndexBuilder& builder = {});

/// Fills `sample` from an example. Throws DataError that begins with `place` when a list has
/// another length than config says, ids are outside the vocabulary, the padding is not at the end,
/// or a position, type or label has no meaning.
void fill_sample(const PretrainingExample& example, const RecordConfig& config,
                 const std::string& place, BertSample& sample);

/// Element k of a random permutation of 0 .. n - 1, drawn for (seed, epoch): a Feistel network over
/// the smallest even number of bits that holds n, applied until the result is below n (Black and
/// Rogaway 2002, "Ciphers with arbitrary finite domains"). Any element costs the same, and none is
/// kept in memory.
std::int64_t permuted(std::int64_t k, std::int64_t n, std::int64_t seed, std::int64_t epoch);

}  // namespace trireme::data
