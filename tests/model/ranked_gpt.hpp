// A model spread over the ranks of a layout, with invented data: what the tests of parallelism run.
#pragma once

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "comm/mpi/mpi_communicator.hpp"
#include "model/families/registry.hpp"
#include "model/spec.hpp"
#include "model/stage/pipeline_stage.hpp"
#include "pipeline/schedule.hpp"
#include "tensors.hpp"

namespace trireme::test {

inline std::unique_ptr<comm::MpiCommunicator> world() { return comm::MpiCommunicator::world(); }

/// Samples before the batch that the tests of layouts train.
inline constexpr std::int64_t kConsumed = 40;
/// How far gradients of a layout may be from the serial ones, in norms of each tensor, in fp64.
inline constexpr double kTolerance64 = 1e-12;

/// FP8 GEMMs in passes that else compute in fp32.
inline Precision fp8_precision() {
  Precision precision = mixed_precision(DType::f32);
  precision.gemm = DType::float8_e4m3;
  precision.gemm_gradients = DType::float8_e5m2;
  return precision;
}

/// A model that every layout of up to eight ranks can cut: four heads and layers, an odd
/// vocabulary.
inline model::Gpt2Config small_gpt2() {
  return {.layers = 4,
          .hidden = 32,
          .heads = 4,
          .ffn = 64,
          .sequence = 16,
          .positions = 20,
          .vocab = 61,
          .attention_dropout = 0.1,
          .hidden_dropout = 0.1,
          .init = {.deviation = 0.1},
          .embedding_layernorm = true};
}

inline model::ModelSpec small_gpt() { return model::gpt2_spec(small_gpt2()); }

/// A Llama with eight query heads that share `kv_heads` of keys and values: with one the layouts
/// have more tensor ranks than these, with four as many and fewer. With one its head is tied, with
/// more it attends to a window.
inline model::LlamaConfig small_grouped_llama(std::int64_t kv_heads) {
  return {.layers = 4,
          .hidden = 16,
          .heads = 8,
          .kv_heads = kv_heads,
          .head_dim = 4,
          .ffn = 32,
          .sequence = 16,
          .positions = 20,
          .vocab = 61,
          .qk_norm = model::QkNorm::head,
          .window = kv_heads == 1 ? 0 : 6,
          .tie_embeddings = kv_heads == 1,
          .attention_dropout = 0.1,
          .hidden_dropout = 0.1,
          .init = {.deviation = 0.2}};
}

/// The models that the tests of layouts train, by their key and value heads; 0: GPT-2.
class EveryModel : public ::testing::TestWithParam<int> {
 protected:
  static bool is_gpt2() { return GetParam() == 0; }
  static model::ModelSpec spec() { return spec(0.1); }
  static model::ModelSpec spec(double dropout) {
    if (is_gpt2()) {
      model::Gpt2Config config = small_gpt2();
      config.attention_dropout = config.hidden_dropout = dropout;
      return model::gpt2_spec(config);
    }
    model::LlamaConfig config = small_grouped_llama(GetParam());
    config.attention_dropout = config.hidden_dropout = dropout;
    model::ModelSpec spec = model::llama_spec(config);
    if (GetParam() > 1) spec.head.z_loss = 1e-2;
    return spec;
  }
};

#define TRIREME_EVERY_MODEL(suite)                                                               \
  INSTANTIATE_TEST_SUITE_P(                                                                      \
      Models, suite, ::testing::Values(0, 1, 4), [](const ::testing::TestParamInfo<int>& info) { \
        return info.param == 0 ? std::string("gpt2") : fmt::format("kv_heads_{}", info.param);   \
      })

/// The layouts of `ranks` ranks that the tests go through, zero-layer stages and stages of several
/// chunks among them.
inline std::vector<grid::Layout> layouts_of(int ranks) {
  switch (ranks) {
    case 2:
      return {{2, 1, 1, {4}},
              {1, 2, 1, {4}},
              {1, 1, 2, {1, 3}},
              {1, 1, 2, {4, 0}},
              {1, 1, 2, {2, 2}, 2}};
    case 4:
      return {{4, 1, 1, {4}}, {1, 4, 1, {4}},    {1, 1, 4, {1, 1, 1, 1}}, {1, 1, 4, {0, 2, 2, 0}},
              {2, 2, 1, {4}}, {2, 1, 2, {2, 2}}, {1, 2, 2, {2, 2}},       {1, 2, 2, {2, 2}, 2}};
    case 8:
      return {{2, 2, 2, {2, 2}, 2}, {2, 1, 4, {0, 2, 2, 0}}};
  }
  throw InternalError("no layouts of {} ranks", ranks);
}

/// "tensor 2, data 1, pipeline 2 (2-2 in 1 chunks)".
inline std::string to_string(const grid::Layout& layout) {
  return fmt::format("tensor {}, data {}, pipeline {} ({} in {} chunks)", layout.tensor,
                     layout.data, layout.pipeline, fmt::join(layout.partition, "-"), layout.chunks);
}

/// The model of this rank with its optimizer. A step trains on kMicroBatches micro-batches of
/// kMicroBatch samples whose tokens depend on the sample's number alone, so that every layout sees
/// the same batch.
class RankedGpt final : public pipeline::StageWork {
 public:
  static constexpr int kMicroBatches = 4;
  static constexpr int kMicroBatch = 2;

  /// The schedule that fits a layout: interleaved where stages have chunks.
  static pipeline::ScheduleKind schedule_for(const grid::Layout& layout) {
    return layout.chunks > 1 ? pipeline::ScheduleKind::interleaved
                             : pipeline::ScheduleKind::one_f_one_b;
  }

  /// Weights are initialised. Collective over `world`, which must have layout.ranks() ranks.
  RankedGpt(std::unique_ptr<comm::MpiCommunicator> world, const grid::Layout& layout,
            const optim::OptimizerConfig& optimizer = {},
            const model::ModelSpec& spec = small_gpt(),
            const Precision& precision = mixed_precision(DType::f32),
            const model::StoreOptions& store = {.gradients = true})
      : RankedGpt(std::move(world), layout, schedule_for(layout), optimizer, spec, precision,
                  /*sequence_parallel=*/false, {}, store) {}
  /// The same under a schedule of the caller's choice; `sequence_parallel` and `recompute` as in
  /// StageConfig, `store` with gradients, `fp32_embedding`
  /// without ZeRO.
  RankedGpt(std::unique_ptr<comm::MpiCommunicator> world, const grid::Layout& layout,
            pipeline::ScheduleKind schedule, const optim::OptimizerConfig& optimizer,
            const model::ModelSpec& spec = small_gpt(),
            const Precision& precision = mixed_precision(DType::f32),
            bool sequence_parallel = false, const model::Recompute& recompute = {},
            const model::StoreOptions& store = {.gradients = true}, bool fp32_embedding = false)
      : spec_(spec),
        groups_(comm::make_groups(std::move(world), layout)),
        parameters_(*backend_, model::declare_parameters(spec), layout, groups_.place, precision,
                    store),
        schedule_(pipeline::make_schedule(
            {schedule, layout.pipeline, layout.chunks, kMicroBatches / layout.data},
            groups_.place.pipeline)),
        stage_({.spec = spec,
                .micro_batch = kMicroBatch,
                .tensor_ranks = layout.tensor,
                .precision = precision,
                .max_loss_tokens = 7,
                .sequence_parallel = sequence_parallel,
                .fp32_embedding = fp32_embedding,
                .recompute = recompute},
               *backend_, *groups_.tensor, parameters_, layout, groups_.place.pipeline,
               pipeline::count_slots(schedule_)),
        optimizer_(*backend_, parameters_,
                   {.world = *groups_.world,
                    .data = *groups_.data,
                    .embedding = groups_.embedding.get(),
                    .sequence_parallel = sequence_parallel ? groups_.tensor.get() : nullptr,
                    .tensor = groups_.tensor.get()},
                   optimizer) {
    optimizer_.initialize(spec.seed);
    stage_.set_hooks(&optimizer_);
    stage_.set_master_weights(
        [this](const std::string& name) { return optimizer_.whole_master(name); });
  }

  /// The same model whole on this rank. Collective over the world of all ranks.
  static std::unique_ptr<RankedGpt> serial(const optim::OptimizerConfig& optimizer = {},
                                           DType dtype = DType::f32,
                                           const model::ModelSpec& spec = small_gpt()) {
    const auto world = comm::MpiCommunicator::world();
    return std::make_unique<RankedGpt>(world->split(world->rank(), 0, "serial"),
                                       grid::Layout{.partition = {static_cast<int>(spec.layers())}},
                                       optimizer, spec, mixed_precision(dtype));
  }

  /// Forward and backward of the batch that starts after `consumed` samples, then reduces the
  /// gradients of the mean loss. Returns that loss. Collective over the model's world.
  double compute_gradients(std::int64_t consumed) {
    consumed_ = consumed;
    passes_left_.assign(groups_.layout.chunks, kMicroBatches / groups_.layout.data);
    parameters_.zero_gradients();
    stage_.begin_batch();
    pipeline::execute(schedule_, *this, *groups_.pipeline);
    optimizer_.reduce_gradients();
    return sum_loss();
  }

  /// One step of training. Returns the loss before it. Collective over the model's world.
  double step(double learning_rate) {
    const double loss = compute_gradients(optimizer_.step() * kMicroBatches * kMicroBatch);
    optimizer_.update({.learning_rate = learning_rate,
                       .weight_decay = 0.01,
                       .gradient_norm = optimizer_.gradient_norm()});
    return loss;
  }

  /// The loss of the batch that starts after `consumed` samples, forward alone, without dropout.
  /// Collective over the model's world.
  double evaluate(std::int64_t consumed) {
    consumed_ = consumed;
    training_ = false;
    stage_.begin_batch();
    const int slots = pipeline::count_slots(schedule_);
    pipeline::execute(
        pipeline::forward_only(groups_.layout.pipeline, groups_.place.pipeline,
                               groups_.layout.chunks, kMicroBatches / groups_.layout.data, slots),
        *this, *groups_.pipeline);
    training_ = true;
    return sum_loss();
  }

  /// The logical tensors, whole on every rank. Collective over the model's world.
  LogicalTensors gradients() {
    return gathered([&](const optim::OwnedPart& part) { return optimizer_.gradient(part); });
  }
  LogicalTensors weights() {
    return gathered([&](const optim::OwnedPart& part) { return optimizer_.master(part); });
  }
  LogicalTensors momentum() {
    return gather(optimizer_, parameters_.table(), optimizer_.states()[0].tensor, Flat::moments,
                  *groups_.world);
  }

  comm::Groups& groups() { return groups_; }
  const model::ParameterStore& parameters() const { return parameters_; }
  model::ParameterStore& parameters() { return parameters_; }
  optim::Optimizer& optimizer() { return optimizer_; }

  Tensor input(int slot) override { return stage_.input(slot); }
  Tensor output(int slot) override { return stage_.output(slot); }
  Tensor gradient(int which) override { return stage_.gradient(which); }

  void forward(const pipeline::Step& step) override {
    const std::int64_t first =
        consumed_ + (step.micro_batch * groups_.layout.data + groups_.place.data) * kMicroBatch;
    std::vector<std::int32_t> ids, labels, types, lengths, sentence_labels;
    for (std::int64_t i = 0; i < spec_.sequence; ++i)
      for (std::int64_t sample = first; sample < first + kMicroBatch; ++sample) {
        ids.push_back(token(sample, i));
        labels.push_back(i < length(sample) && has_label(i) ? token(sample, i + 1) : -1);
        types.push_back(2 * i >= length(sample));
      }
    for (std::int64_t sample = first; sample < first + kMicroBatch; ++sample) {
      lengths.push_back(static_cast<std::int32_t>(length(sample)));
      sentence_labels.push_back(static_cast<std::int32_t>(sample % 3) - 1);
    }
    stage_.load(step.slot,
                {.ids = ids,
                 .labels = labels,
                 .first_sample = static_cast<std::uint64_t>(first),
                 .token_types = types,
                 .lengths = lengths,
                 .sentence_labels = sentence_labels},
                step.chunk);
    stage_.forward(step.slot, training_, training_ ? std::optional(loss_scales()) : std::nullopt);
  }

  void backward(const pipeline::Step& step, const Tensor& gradient) override {
    if (step.kind == pipeline::StepKind::input_gradient)
      stage_.backward_input(step.slot, gradient);
    else
      stage_.backward(step.slot, gradient, is_last_pass(step.chunk));
  }
  void weight_gradient(const pipeline::Step& step) override {
    stage_.backward_weights(step.slot, is_last_pass(step.chunk));
  }

 private:
  bool is_last_pass(int chunk) { return --passes_left_[chunk] == 0; }

  std::int32_t token(std::int64_t sample, std::int64_t position) const {
    return static_cast<std::int32_t>(philox_uniform(5, sample, position) *
                                     static_cast<double>(spec_.vocab));
  }

  /// Every fourth token at most, where the spec says that few have one.
  bool has_label(std::int64_t i) const { return spec_.head.max_labels == 0 || i % 4 == 1; }

  /// Tokens before the padding.
  std::int64_t length(std::int64_t sample) const {
    return spec_.padding ? 2 + sample * 5 % (spec_.sequence - 1) : spec_.sequence;
  }

  model::LossScales loss_scales() const {
    const double samples = kMicroBatch * kMicroBatches;
    return {1.0 / (static_cast<double>(spec_.sequence) * samples), 0.5 / samples};
  }

  /// The mean loss of the batch that has passed.
  double sum_loss() {
    const bool knows_loss = groups_.is_last_stage() && groups_.place.tensor == 0;
    const model::LossScales scales = loss_scales();
    const double loss =
        scales.tokens * stage_.loss_sum() + scales.sentences * stage_.sentence_loss_sum();
    return groups_.world->all_reduce(knows_loss ? loss : 0.0, comm::Reduce::sum);
  }

  template <typename Values>
  LogicalTensors gathered(const Values& values) {
    return gather(optimizer_, parameters_.table(), *groups_.world, values);
  }

  model::ModelSpec spec_;
  std::unique_ptr<device::Backend> backend_ = device::make_host_backend(1);
  comm::Groups groups_;
  model::ParameterStore parameters_;
  pipeline::StageSchedule schedule_;
  model::PipelineStage stage_;
  optim::Optimizer optimizer_;
  bool training_ = true;
  std::int64_t consumed_ = 0;
  std::vector<int> passes_left_;  ///< micro-batches yet to leave each chunk
};

}  // namespace trireme::test
