// A dataset for training and evaluation: numbered samples of named integer tensors.
#pragma once

#include <cstdint>
#include <future>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

/// The label of a position that the loss ignores.
inline constexpr std::int32_t kIgnoredLabel = -1;

/// One tensor of a sample.
struct Field {
  std::string name;          ///< of field::, where the model knows it
  std::int64_t size = 1;     ///< elements per sample
  std::int32_t padding = 0;  ///< each element of a sample past the dataset's end

  bool operator==(const Field&) const = default;
};

/// The names that models read. A dataset may have others, which are batched alike.
namespace field {
inline constexpr const char* kTokens = "tokens";  ///< [sequence] token ids
inline constexpr const char* kLabels = "labels";  ///< [sequence] ids, or kIgnoredLabel
inline constexpr const char* kTokenTypes =
    "token_types";                                  ///< [sequence] 0: first sentence, 1: second
inline constexpr const char* kLengths = "lengths";  ///< [1] tokens before the padding
inline constexpr const char* kSentenceLabels = "sentence_labels";  ///< [1] 0 or 1, or kIgnoredLabel
}  // namespace field

/// Numbered samples. Immutable: several threads may read concurrently.
class Dataset {
 public:
  virtual ~Dataset() = default;

  /// Number of samples.
  virtual std::int64_t samples() const = 0;

  /// The tensors of a sample: the same for every sample. The names differ.
  virtual const std::vector<Field>& fields() const = 0;

  /// Writes sample number `sample`, 0 <= sample < samples(): tensor i to tensors[i]
  /// [fields()[i].size]. Depends on `sample` alone, never on what was read before. Throws DataError
  /// for bad data, which it names, and IoError.
  virtual void read(std::int64_t sample,
                    std::span<const std::span<std::int32_t>> tensors) const = 0;

  /// Throws IoError that names the first file that was changed since the dataset was opened.
  virtual void require_unchanged() const = 0;
};

// From a dataset to the micro-batches of a rank: which samples, in which memory layout, read ahead.

/// Sequential sampling, Megatron-LM's `single`: an iteration that starts after `consumed` samples
/// takes samples [consumed, consumed + global_batch), divided into blocks of micro_batch *
/// data_ranks; micro-batch k is block k, of which data rank r has the r-th part. So the samples of
/// an iteration depend on no layout, and a run resumes from its count of consumed samples alone.
struct Sampler {
  std::int64_t global_batch = 1;
  std::int64_t micro_batch = 1;
  std::int64_t data_ranks = 1;
  std::int64_t data_rank = 0;
  bool past_end = false;  ///< samples past the dataset's end are padding (Field::padding)

  /// Micro-batches in an iteration; global_batch is a multiple of micro_batch * data_ranks.
  std::int64_t micro_batches() const { return global_batch / (micro_batch * data_ranks); }

  /// The first of this rank's micro_batch consecutive samples in micro-batch k.
  std::int64_t first_sample(std::int64_t consumed, std::int64_t k) const {
    return consumed + (k * data_ranks + data_rank) * micro_batch;
  }
};

/// The tensors of one micro-batch, sequence-major as the model reads them: element i of sample j
/// stands at [i * samples() + j].
class Batch {
 public:
  Batch() = default;
  Batch(Batch&&) = default;  // not copied: tensors_ points into row_
  Batch& operator=(Batch&&) = default;

  /// Makes room for `samples` samples of `fields`. Keeps its memory where that has not changed.
  void resize(const std::vector<Field>& fields, std::int64_t samples);

  std::int64_t samples() const { return samples_; }

  /// The tensor of that name [size, samples()]; empty where the dataset has none.
  std::span<const std::int32_t> tensor(std::string_view name) const;

  /// How many elements of that tensor are not kIgnoredLabel: what a mean loss divides by.
  std::int64_t count_labels(std::string_view name) const;

  /// Reads sample number `sample` of `dataset`, whose fields it has, into place `j`. Throws as
  /// Dataset::read().
  void read(const Dataset& dataset, std::int64_t sample, std::int64_t j);

  /// Fills place `j` with padding.
  void pad(std::int64_t j);

 private:
  std::span<std::int32_t> values(std::size_t field) {
    return std::span(values_).subspan(offsets_[field] * samples_, fields_[field].size * samples_);
  }

  std::vector<Field> fields_;
  std::vector<std::int64_t> offsets_;  ///< elements of a sample before each field
  std::int64_t samples_ = 0;
  std::vector<std::int32_t> values_;              ///< field by field
  std::vector<std::int32_t> row_;                 ///< one sample, field by field
  std::vector<std::span<std::int32_t>> tensors_;  ///< of row_
};

/// Fills `batch` with this rank's micro-batch k of the iteration that starts after `consumed`
/// samples. Throws InternalError when the dataset has too few samples and sampler.past_end is
/// false, and as Dataset::read() does.
void read_micro_batch(const Dataset& dataset, const Sampler& sampler, std::int64_t consumed,
                      std::int64_t k, Batch& batch);

/// Reads a rank's part of the next global batch in a thread while the current one is computed. Bad
/// data is found between two iterations, while no rank waits for another, and the batch that was
/// read is used even if its files change afterwards.
class BatchPrefetcher {
 public:
  BatchPrefetcher() = default;
  BatchPrefetcher(const BatchPrefetcher&) = delete;  // the thread writes to this one

  /// Starts to read the batch that follows `consumed` samples; with `check_files` checks first that
  /// the dataset's files are unchanged. `dataset` must outlive finish().
  void start(const Dataset& dataset, const Sampler& sampler, std::int64_t consumed,
             bool check_files);

  /// Waits until the batch that was started is read; returns immediately when none was. Throws as
  /// read_micro_batch() and Dataset::require_unchanged().
  void finish();

  /// Micro-batch `k` of the batch after `consumed` samples, where that is the batch that finish()
  /// has waited for last, until the next finish(); else null.
  const Batch* find(const Dataset& dataset, const Sampler& sampler, std::int64_t consumed,
                    std::int64_t k) const;

 private:
  /// All micro-batches of a rank's part of a global batch.
  struct GlobalBatch {
    const Dataset* dataset = nullptr;
    Sampler sampler;
    std::int64_t consumed = 0;
    std::vector<Batch> micro_batches;
  };
  static void read(GlobalBatch& batch, bool check_files);

  GlobalBatch ready_, next_;
  std::future<void> reading_;  ///< last, so that it is waited for before the batches are gone
};

}  // namespace trireme::data
