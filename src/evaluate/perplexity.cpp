#include "evaluate/perplexity.hpp"

#include <algorithm>

namespace trireme::evaluate {

pipeline::LossSum whole_split(pipeline::StageRunner& runner, const data::GptDataset& dataset,
                              std::int64_t micro_batch, const comm::Groups& groups) {
  // Eight micro-batches a pass keep every stage of a pipeline busy.
  const std::int64_t block = micro_batch * groups.layout.data;
  const std::int64_t blocks = (dataset.samples() + block - 1) / block;
  pipeline::LossSum sum;
  for (std::int64_t done = 0; done < blocks; done += 8) {
    const data::Sampler sampler{.global_batch = std::min<std::int64_t>(8, blocks - done) * block,
                                .micro_batch = micro_batch,
                                .data_ranks = groups.layout.data,
                                .data_rank = groups.place.data,
                                .past_end = true};
    const pipeline::LossSum part = runner.evaluate(dataset, sampler, done * block);
    sum.loss += part.loss;
    sum.tokens += part.tokens;
  }
  return sum;
}

}  // namespace trireme::evaluate
