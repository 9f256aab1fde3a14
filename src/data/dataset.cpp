#include "data/dataset.hpp"

#include <algorithm>
#include <utility>

#include "core/error.hpp"

namespace trireme::data {

void Batch::resize(const std::vector<Field>& fields, std::int64_t samples) {
  if (fields == fields_ && samples == samples_) return;
  fields_ = fields;
  samples_ = samples;
  offsets_.clear();
  std::int64_t size = 0;
  for (const Field& field : fields_) {
    offsets_.push_back(size);
    size += field.size;
  }
  values_.assign(size * samples, 0);
  row_.assign(size, 0);
  tensors_.clear();
  for (std::size_t i = 0; i < fields_.size(); ++i)
    tensors_.push_back(std::span(row_).subspan(offsets_[i], fields_[i].size));
}

std::span<const std::int32_t> Batch::tensor(std::string_view name) const {
  for (std::size_t i = 0; i < fields_.size(); ++i)
    if (fields_[i].name == name)
      return std::span(values_).subspan(offsets_[i] * samples_, fields_[i].size * samples_);
  return {};
}

std::int64_t Batch::count_labels(std::string_view name) const {
  const auto labels = tensor(name);
  return std::ssize(labels) - std::ranges::count(labels, kIgnoredLabel);
}

void Batch::read(const Dataset& dataset, std::int64_t sample, std::int64_t j) {
  TRIREME_CHECK(j >= 0 && j < samples_, "place {} of {}", j, samples_);
  dataset.read(sample, tensors_);
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    const auto out = values(i);
    for (std::size_t k = 0; k < tensors_[i].size(); ++k) out[k * samples_ + j] = tensors_[i][k];
  }
}

void Batch::pad(std::int64_t j) {
  TRIREME_CHECK(j >= 0 && j < samples_, "place {} of {}", j, samples_);
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    const auto out = values(i);
    for (std::int64_t k = 0; k < fields_[i].size; ++k) out[k * samples_ + j] = fields_[i].padding;
  }
}

void read_micro_batch(const Dataset& dataset, const Sampler& sampler, std::int64_t consumed,
                      std::int64_t k, Batch& batch) {
  const std::int64_t first = sampler.first_sample(consumed, k);
  const std::int64_t there =
      std::clamp<std::int64_t>(dataset.samples() - first, 0, sampler.micro_batch);
  TRIREME_CHECK(first >= 0 && (there == sampler.micro_batch || sampler.past_end),
                "samples {} to {} of {}", first, first + sampler.micro_batch - 1,
                dataset.samples());
  batch.resize(dataset.fields(), sampler.micro_batch);
  for (std::int64_t j = 0; j < there; ++j) batch.read(dataset, first + j, j);
  for (std::int64_t j = there; j < sampler.micro_batch; ++j) batch.pad(j);
}

void BatchPrefetcher::start(const Dataset& dataset, const Sampler& sampler, std::int64_t consumed,
                            bool check_files) {
  next_.dataset = &dataset;
  next_.sampler = sampler;
  next_.consumed = consumed;
  reading_ = std::async(std::launch::async, [this, check_files] { read(next_, check_files); });
}

void BatchPrefetcher::read(GlobalBatch& batch, bool check_files) {
  if (check_files) batch.dataset->require_unchanged();
  batch.micro_batches.resize(batch.sampler.micro_batches());
  for (std::size_t k = 0; k < batch.micro_batches.size(); ++k)
    read_micro_batch(*batch.dataset, batch.sampler, batch.consumed, static_cast<std::int64_t>(k),
                     batch.micro_batches[k]);
}

void BatchPrefetcher::finish() {
  if (!reading_.valid()) return;
  reading_.get();
  std::swap(ready_, next_);
}

const Batch* BatchPrefetcher::find(const Dataset& dataset, const Sampler& sampler,
                                   std::int64_t consumed, std::int64_t k) const {
  if (ready_.dataset != &dataset || ready_.consumed != consumed ||
      ready_.sampler.global_batch != sampler.global_batch)
    return nullptr;
  return &ready_.micro_batches[k];
}

}  // namespace trireme::data
