// BERT samples in TensorFlow's record files (TFRecord), as BERT's create_pretraining_data writes
// them: the files, and the dataset, without TensorFlow and protobuf. And opening one split of a
// BERT run's data, from one or several datasets of sentences or from record files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/files.hpp"
#include "data/bert/sample.hpp"
#include "data/dataset.hpp"
#include "data/gpt/gpt_dataset.hpp"
#include "data/numpy.hpp"
#include "deck/choices.hpp"

namespace trireme::data {

/// The byte at which each record of a file begins, and the file's size: [records + 1]. A record is
/// its length (u64), the masked CRC-32C of the length, the data, and their masked CRC-32C; little
/// endian. Reads the lengths only. Throws DataError that names the file and the byte when it is no
/// record file, truncated or damaged there, and IoError.
std::vector<std::int64_t> scan_records(const std::filesystem::path& path);

/// Whether a file is compressed by gzip and not a plain record file. Throws IoError.
bool is_gzip(const std::filesystem::path& path);

/// Writes the bytes of a file compressed by gzip to `output`, which is removed on failure.
/// Throws DataError that names the file and the byte of the output for a damaged stream, and
/// IoError.
void unpack_gzip(const std::filesystem::path& path, const std::filesystem::path& output);

/// An open record file. May be read from several threads concurrently.
class RecordFile {
 public:
  /// `offsets` are scan_records(path)'s. `name` is what messages call it. Throws DataError when the
  /// file has another size, and IoError.
  RecordFile(const std::filesystem::path& path, std::string name, NpyArray offsets);

  std::int64_t records() const { return offsets_.rows() - 1; }
  /// The byte at which record `i` begins; with records() the file's size.
  std::int64_t offset(std::int64_t i) const { return offsets_(i); }
  /// Writes the data of record `i` to `data`. Throws DataError that names the file and the byte
  /// when a checksum is wrong, and IoError.
  void read(std::int64_t i, std::string& data) const;
  /// "'a.tfrecord', record 3 at byte 1024", for messages.
  std::string place_of(std::int64_t i) const;
  /// As ReadFile::require_unchanged().
  void require_unchanged() const { file_.require_unchanged(); }

 private:
  ReadFile file_;
  std::string name_;
  NpyArray offsets_;
};

/// One example: the features of create_pretraining_data.
struct PretrainingExample {
  std::vector<std::int64_t> input_ids, input_mask, segment_ids;  ///< [sequence]
  std::vector<std::int64_t> masked_lm_positions, masked_lm_ids;  ///< [predictions]
  std::vector<float> masked_lm_weights;                          ///< [predictions] 0: padding
  std::vector<std::int64_t> next_sentence_labels;                ///< [1] 1: a random sentence
};

/// Reads a tf.train.Example (example.proto, feature.proto). Other features are skipped. Throws
/// DataError that begins with `place` for data that are no such message, and for a feature that is
/// missing or has another type.
PretrainingExample parse_pretraining_example(std::string_view data, const std::string& place);

// Samples that BERT's create_pretraining_data has made: masked already, in TensorFlow's record
// files.

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

// ---- opening a split

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
