#include "data/sampler.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace trireme::data {

void fill_micro_batch(const GptDataset& dataset, const Sampler& sampler, std::int64_t consumed,
                      std::int64_t k, std::span<std::int32_t> inputs,
                      std::span<std::int32_t> labels) {
  const auto sequence = static_cast<std::size_t>(dataset.format().sequence);
  const std::int64_t first = sampler.first_sample(consumed, k);
  const std::int64_t there =
      std::clamp<std::int64_t>(dataset.samples() - first, 0, sampler.micro_batch);
  TRIREME_CHECK(first >= 0 && (there == sampler.micro_batch || sampler.past_end),
                "samples {} to {} of {}", first, first + sampler.micro_batch - 1,
                dataset.samples());
  for (std::int64_t i = 0; i < there; ++i)
    dataset.fill(first + i, inputs.subspan(i * sequence, sequence),
                 labels.subspan(i * sequence, sequence));
  std::ranges::fill(inputs.subspan(there * sequence), 0);
  std::ranges::fill(labels.subspan(there * sequence), kIgnoredLabel);
}

}  // namespace trireme::data
