// Runs micro-batches of a dataset through this rank's stage.
#pragma once

#include <vector>

#include "comm/mpi/groups.hpp"
#include "data/sampler.hpp"
#include "model/gpt_stage.hpp"
#include "pipeline/executor.hpp"

namespace trireme::pipeline {

/// Summed over the whole global batch.
struct LossSum {
  double loss = 0.0;
  double tokens = 0.0;  ///< labels that counted
  double mean() const { return tokens > 0.0 ? loss / tokens : 0.0; }
};

/// The stage of this rank with the memory for a global batch's token ids.
class StageRunner final : public StageWork {
 public:
  /// Makes the stage; every argument must outlive this.
  StageRunner(comm::Groups& groups, const model::LayerContext& context,
              const model::ParameterStore& parameters, int slots);

  /// Forward and backward of the global batch that starts after `consumed` samples: adds the
  /// gradient of the batch's mean loss to the parameters' gradients. Collective over all ranks.
  LossSum train(const data::GptDataset& dataset, const data::Sampler& sampler,
                std::int64_t consumed, const StageSchedule& schedule);

  /// Forward alone, without dropout. Collective over all ranks.
  LossSum evaluate(const data::GptDataset& dataset, const data::Sampler& sampler,
                   std::int64_t consumed);

  Tensor input(int slot) override { return stage_.input(slot); }
  Tensor output(int slot) override { return stage_.output(slot); }
  Tensor gradient(int which) override { return stage_.gradient(which); }
  void forward(int micro_batch, int slot) override;
  void backward(int micro_batch, int slot, const Tensor& gradient) override;

  model::GptStage& stage() { return stage_; }

 private:
  LossSum run(const data::GptDataset& dataset, const data::Sampler& sampler, std::int64_t consumed,
              const StageSchedule& schedule, bool training);
  void load(int micro_batch, int slot);

  comm::Groups& groups_;
  model::GptStage stage_;
  std::int64_t sequence_;
  int slots_;
  // The batch under way.
  const data::GptDataset* dataset_ = nullptr;
  data::Sampler sampler_;
  std::int64_t consumed_ = 0;
  bool training_ = true;
  std::vector<std::int32_t> rows_[2];        ///< ids and labels [b, s], as the dataset gives them
  std::vector<std::int32_t> sequential_[2];  ///< the same as [s, b]
  std::vector<double> tokens_;               ///< counted labels of the micro-batch in each slot
  double tokens_sum_ = 0.0;
};

}  // namespace trireme::pipeline
