#include "data/batch_ahead.hpp"

#include <algorithm>
#include <utility>

namespace trireme::data {

void BatchAhead::start(const GptDataset& dataset, const Sampler& sampler, std::int64_t consumed,
                       bool check_files) {
  coming_.dataset = &dataset;
  coming_.sampler = sampler;
  coming_.consumed = consumed;
  reading_ = std::async(std::launch::async, [this, check_files] { read(coming_, check_files); });
}

void BatchAhead::read(Batch& batch, bool check_files) {
  if (check_files) batch.dataset->require_unchanged();
  const Sampler& sampler = batch.sampler;
  const auto tokens =
      static_cast<std::size_t>(sampler.micro_batch * batch.dataset->format().sequence);
  const auto count = static_cast<std::size_t>(sampler.micro_batches());
  batch.inputs.resize(count * tokens);
  batch.labels.resize(count * tokens);
  for (std::size_t k = 0; k < count; ++k)
    fill_micro_batch(*batch.dataset, sampler, batch.consumed, static_cast<std::int64_t>(k),
                     std::span(batch.inputs).subspan(k * tokens, tokens),
                     std::span(batch.labels).subspan(k * tokens, tokens));
}

void BatchAhead::finish() {
  if (!reading_.valid()) return;
  reading_.get();
  std::swap(ready_, coming_);
}

bool BatchAhead::take(const GptDataset& dataset, const Sampler& sampler, std::int64_t consumed,
                      std::int64_t k, std::span<std::int32_t> inputs,
                      std::span<std::int32_t> labels) const {
  if (ready_.dataset != &dataset || ready_.consumed != consumed ||
      ready_.sampler.global_batch != sampler.global_batch)
    return false;
  const std::size_t first = static_cast<std::size_t>(k) * inputs.size();
  std::ranges::copy(std::span(ready_.inputs).subspan(first, inputs.size()), inputs.begin());
  std::ranges::copy(std::span(ready_.labels).subspan(first, labels.size()), labels.begin());
  return true;
}

}  // namespace trireme::data
