#include "data/sampler.hpp"

#include "core/error.hpp"

namespace trireme::data {

void fill_micro_batch(const GptDataset& dataset, const Sampler& sampler, std::int64_t consumed,
                      std::int64_t k, std::span<std::int32_t> inputs,
                      std::span<std::int32_t> labels) {
  const auto sequence = static_cast<std::size_t>(dataset.format().sequence);
  const std::int64_t first = sampler.first_sample(consumed, k);
  TRIREME_CHECK(first >= 0 && first + sampler.micro_batch <= dataset.samples(),
                "samples {} to {} of {}", first, first + sampler.micro_batch - 1,
                dataset.samples());
  for (std::int64_t i = 0; i < sampler.micro_batch; ++i)
    dataset.fill(first + i, inputs.subspan(i * sequence, sequence),
                 labels.subspan(i * sequence, sequence));
}

}  // namespace trireme::data
