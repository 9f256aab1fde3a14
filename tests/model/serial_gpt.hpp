// A whole GPT on one rank, for tests that compare its numbers.
#pragma once

#include <algorithm>
#include <memory>
#include <span>

#include "comm/communicator.hpp"
#include "model/families/registry.hpp"
#include "model/spec.hpp"
#include "model/stage/pipeline_stage.hpp"

namespace trireme::test {

/// The model with room for one micro-batch; weights are zero until set or initialised.
class SerialGpt {
 public:
  SerialGpt(const model::Gpt2Config& config, std::int64_t micro_batch, DType dtype,
            std::int64_t max_loss_tokens = 1000, const model::Recompute& recompute = {})
      : SerialGpt(model::gpt2_spec(config), micro_batch, dtype, max_loss_tokens, recompute) {}
  SerialGpt(const model::ModelSpec& spec, std::int64_t micro_batch, DType dtype,
            std::int64_t max_loss_tokens = 1000, const model::Recompute& recompute = {},
            bool fp32_embedding = false)
      : layout_{.partition = {static_cast<int>(spec.layers())}},
        parameters_(*backend_, model::declare_parameters(spec), layout_, {}, mixed_precision(dtype),
                    {.gradients = true}),
        stage_({.spec = spec,
                .micro_batch = micro_batch,
                .precision = mixed_precision(dtype),
                .max_loss_tokens = max_loss_tokens,
                .fp32_embedding = fp32_embedding,
                .recompute = recompute},
               *backend_, alone_, parameters_, layout_, /*stage=*/0, /*slots=*/1) {}

  model::ParameterStore& parameters() { return parameters_; }
  model::PipelineStage& stage() { return stage_; }

  /// Runs the batch forward, with dropout. Returns the mean loss over the labels that count.
  double forward(const model::MicroBatch& batch) {
    stage_.begin_batch();
    stage_.load(0, batch);
    stage_.forward(0, /*training=*/true);
    return stage_.loss_sum() / counted(batch);
  }

  /// Runs the batch forward and backward: writes the gradients of its mean loss.
  void backward(const model::MicroBatch& batch) {
    parameters_.zero_gradients();
    add_gradients(batch, 0);
  }

  /// As backward(), but adds to the gradients; `which` of the stage's gradient buffers it uses.
  void add_gradients(const model::MicroBatch& batch, int which) {
    stage_.load(0, batch);
    stage_.forward(0, /*training=*/true,
                   model::LossScales(1.0 / counted(batch), 1.0 / counted_sentences(batch)));
    stage_.backward(0, stage_.gradient(which));
  }

  /// Labels that count; at least 1.
  static double counted_sentences(const model::MicroBatch& batch) {
    return std::max(1.0, count(batch.sentence_labels));
  }

 private:
  static double count(std::span<const std::int32_t> labels) {
    return static_cast<double>(
        std::count_if(labels.begin(), labels.end(), [](auto id) { return id >= 0; }));
  }
  static double counted(const model::MicroBatch& batch) { return count(batch.labels); }

  std::unique_ptr<device::Backend> backend_ = device::make_host_backend(1);
  comm::SerialCommunicator alone_;
  grid::Layout layout_;
  model::ParameterStore parameters_;
  model::PipelineStage stage_;
};

}  // namespace trireme::test
