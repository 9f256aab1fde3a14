#include "evaluate/perplexity.hpp"

#include <algorithm>

namespace trireme::evaluate {

pipeline::LossSum whole_split(pipeline::StageRunner& runner, const data::GptDataset& dataset,
                              std::int64_t micro_batch, const comm::Groups& groups) {
  // Eight micro-batches a pass keep every stage of a pipeline busy and still leave little over at
  // the end.
  const std::int64_t block = micro_batch * groups.layout.data;
  std::int64_t done = 0;
  pipeline::LossSum sum;
  while (dataset.samples() - done >= block) {
    const std::int64_t blocks = std::min<std::int64_t>(8, (dataset.samples() - done) / block);
    const data::Sampler sampler{.global_batch = blocks * block,
                                .micro_batch = micro_batch,
                                .data_ranks = groups.layout.data,
                                .data_rank = groups.place.data};
    const pipeline::LossSum part = runner.evaluate(dataset, sampler, done);
    sum.loss += part.loss;
    sum.tokens += part.tokens;
    done += sampler.global_batch;
  }
  return sum;
}

}  // namespace trireme::evaluate
