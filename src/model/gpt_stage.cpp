#include "model/gpt_stage.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace trireme::model {

GptStage::Slot GptStage::Slot::take(Arena& arena, const LayerSizes& sizes, int layers, bool first,
                                    bool last) {
  Slot slot;
  const Shape stream{sizes.config.sequence, sizes.micro_batch, sizes.config.hidden};
  if (first) {
    slot.ids = arena.take_ints(sizes.tokens());
    slot.embedding = Embedding::Activations::take(arena, sizes);
  }
  slot.streams.push_back(arena.take(sizes.dtype, stream));
  for (int layer = 0; layer < layers; ++layer) {
    slot.layers.push_back(LayerActivations::take(arena, sizes));
    slot.streams.push_back(arena.take(sizes.dtype, stream));
  }
  if (last) {
    slot.labels = arena.take_ints(sizes.tokens());
    slot.head = Head::Activations::take(arena, sizes);
  }
  return slot;
}

GptStage::Scratch GptStage::Scratch::take(Arena& arena, const LayerSizes& sizes) {
  Scratch scratch;
  scratch.layer = LayerWorkspace::take(arena, sizes);
  scratch.loss = arena.take(DType::f64, {1});
  for (Tensor& gradient : scratch.gradients)
    gradient = arena.take(sizes.dtype, scratch.layer.stream.shape);
  return scratch;
}

StageMemory GptStage::plan(const LayerSizes& sizes, const grid::Layout& layout, int stage,
                           int slots) {
  Arena activations, workspace;
  for (int slot = 0; slot < slots; ++slot)
    Slot::take(activations, sizes, layout.layers_of(stage).count, layout.is_first(stage),
               layout.is_last(stage));
  const Scratch scratch = Scratch::take(workspace, sizes);
  const std::size_t exchanged = 2 * scratch.gradients[0].bytes();
  return {activations.bytes(), workspace.bytes() - exchanged, exchanged};
}

GptStage::GptStage(const LayerContext& context, const ParameterStore& parameters,
                   const grid::Layout& layout, int stage, int slots)
    : context_(context) {
  const grid::LayerRange range = layout.layers_of(stage);
  if (layout.is_first(stage)) embedding_.emplace(parameters, context.config);
  for (int layer = range.first; layer < range.first + range.count; ++layer)
    layers_.emplace_back(parameters, layer);
  if (layout.is_last(stage)) head_.emplace(parameters);

  const Placement& placement = parameters.placement();
  embedding_range_ = head_range_ = {0, placement.owned_size};
  layer_ranges_.assign(range.count, {placement.owned_size, 0});
  for (const LocalParameter& local : placement.parameters) {
    if (local.parameter->home != Home::layer) continue;
    FlatRange& layer = layer_ranges_[local.parameter->layer - range.first];
    layer.begin = std::min(layer.begin, local.offset);
    layer.end = std::max(layer.end, local.offset + local.shape.size());
  }
  if (!layer_ranges_.empty()) {
    embedding_range_.end = layer_ranges_.front().begin;
    head_range_.begin = layer_ranges_.back().end;
  }

  const StageMemory memory = plan(context, layout, stage, slots);
  activation_memory_ = context.backend.allocate(memory.activations, "activations");
  workspace_memory_ =
      context.backend.allocate(memory.workspace + memory.communication, "workspace");
  Arena activations(activation_memory_.get()), workspace(workspace_memory_.get());
  for (int slot = 0; slot < slots; ++slot)
    slots_.push_back(Slot::take(activations, context, range.count, is_first(), is_last()));
  scratch_ = Scratch::take(workspace, context);
}

void GptStage::load(int slot_index, const MicroBatch& batch) {
  Slot& slot = slots_[slot_index];
  const std::size_t bytes = context_.tokens() * sizeof(std::int32_t);
  slot.first_sample = batch.first_sample;
  if (slot.ids) context_.backend.upload(slot.ids, batch.ids.data(), bytes);
  if (slot.labels) context_.backend.upload(slot.labels, batch.labels.data(), bytes);
}

void GptStage::forward(int slot_index, bool training, std::optional<double> loss_scale) {
  const Slot& slot = slots_[slot_index];
  const PassInfo pass{.training = training, .first_sample = slot.first_sample};
  if (embedding_) {
    before_reading(embedding_range_);
    embedding_->forward(context_, pass, slot.ids, 0, slot.embedding, slot.streams.front());
  }
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    before_reading(layer_ranges_[i]);
    layers_[i].forward(context_, scratch_.layer, pass, slot.streams[i], slot.layers[i],
                       slot.streams[i + 1]);
  }
  if (head_) {
    before_reading(head_range_);
    head_->forward(context_, slot.streams.back(), slot.labels, loss_scale, slot.head,
                   scratch_.loss);
  }
}

void GptStage::backward(int slot_index, const Tensor& gradient, bool last) {
  const Slot& slot = slots_[slot_index];
  const PassInfo pass{.training = true, .first_sample = slot.first_sample};
  const Tensor beside = scratch_.layer.stream;
  if (head_) head_->backward(context_, slot.streams.back(), slot.head, gradient);
  for (std::size_t i = layers_.size(); i-- > 0;) {
    layers_[i].backward(context_, scratch_.layer, pass, slot.streams[i], slot.layers[i], gradient);
    if (last && observer_) observer_->gradients_complete_from(layer_ranges_[i].begin);
  }
  if (embedding_) embedding_->backward(context_, pass, slot.ids, slot.embedding, gradient, beside);
}

double GptStage::loss_sum() {
  double sum = 0.0;
  context_.backend.download(&sum, scratch_.loss.data, sizeof sum);
  return sum;
}

void GptStage::reset_loss() { context_.backend.zero(scratch_.loss); }

}  // namespace trireme::model
