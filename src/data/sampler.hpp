// Which samples a rank takes in which micro-batch.
#pragma once

#include <cstdint>
#include <span>

#include "data/gpt_dataset.hpp"

namespace trireme::data {

/// Sequential sampling, Megatron-LM's `single`: an iteration that starts after `consumed` samples
/// takes samples [consumed, consumed + global_batch), cut into blocks of micro_batch * data_ranks;
/// micro-batch k is block k, of which data rank r has the r-th part. So the samples of an iteration
/// depend on no layout, and a run resumes from its count of consumed samples alone.
struct Sampler {
  std::int64_t global_batch = 1;
  std::int64_t micro_batch = 1;
  std::int64_t data_ranks = 1;
  std::int64_t data_rank = 0;
  bool past_end = false;  ///< samples past the dataset's end are empty: id 0, no labels

  /// Micro-batches in an iteration; global_batch is a multiple of micro_batch * data_ranks.
  std::int64_t micro_batches() const { return global_batch / (micro_batch * data_ranks); }

  /// The first of this rank's micro_batch consecutive samples in micro-batch k.
  std::int64_t first_sample(std::int64_t consumed, std::int64_t k) const {
    return consumed + (k * data_ranks + data_rank) * micro_batch;
  }
};

/// Fills this rank's micro-batch k of the iteration that starts after `consumed` samples: inputs
/// and labels [micro_batch, sequence] row-major, labels kIgnoredLabel where the loss must not look.
/// Throws InternalError when the dataset has too few samples and sampler.past_end is false, and as
/// GptDataset::read does.
void fill_micro_batch(const GptDataset& dataset, const Sampler& sampler, std::int64_t consumed,
                      std::int64_t k, std::span<std::int32_t> inputs,
                      std::span<std::int32_t> labels);

}  // namespace trireme::data
