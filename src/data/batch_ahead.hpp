// The next batch's tokens, read while this one is computed.
#pragma once

#include <cstdint>
#include <future>
#include <span>
#include <vector>

#include "data/gpt_dataset.hpp"
#include "data/sampler.hpp"

namespace trireme::data {

/// Reads a rank's part of one batch in a thread of its own. What is wrong with the data is found
/// between two iterations, while no rank waits for another, and the batch that was read is used
/// whatever becomes of its files.
class BatchAhead {
 public:
  BatchAhead() = default;
  BatchAhead(const BatchAhead&) = delete;  // the thread writes to this one

  /// Starts to read the batch that follows `consumed` samples; with `check_files` looks first
  /// whether the dataset's files were changed. `dataset` must outlive finish().
  void start(const GptDataset& dataset, const Sampler& sampler, std::int64_t consumed,
             bool check_files);

  /// Waits until the batch that was started is read; nothing when none was. Throws as
  /// fill_micro_batch() and GptDataset::require_unchanged().
  void finish();

  /// Copies micro-batch `k` of the batch after `consumed` samples like fill_micro_batch() where
  /// that is the batch that finish() has waited for last; false otherwise.
  bool take(const GptDataset& dataset, const Sampler& sampler, std::int64_t consumed,
            std::int64_t k, std::span<std::int32_t> inputs, std::span<std::int32_t> labels) const;

 private:
  /// Ids and labels of all micro-batches, one after the other.
  struct Batch {
    const GptDataset* dataset = nullptr;
    Sampler sampler;
    std::int64_t consumed = 0;
    std::vector<std::int32_t> inputs, labels;
  };
  static void read(Batch& batch, bool check_files);

  Batch ready_, coming_;
  std::future<void> reading_;  ///< last, so that it is waited for before the batches are gone
};

}  // namespace trireme::data
