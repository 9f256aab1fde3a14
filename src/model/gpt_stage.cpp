#include "model/gpt_stage.hpp"

#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "model/documents.hpp"

namespace trireme::model {

using Pass = LayerRecordings::Pass;

namespace {

/// Tokens of a micro-batch up to which layers are recorded. GPUs compute longer on more than hosts
/// take to ask.
constexpr std::int64_t kMostRecordedTokens = 8192;

/// Where a layer reads or writes: [S, b, h].
Tensor take_stream(Arena& arena, const LayerSizes& sizes) {
  return arena.take(sizes.dtype, sizes.stream_shape());
}

/// How the chunks of a stage are cut: all have as many layers.
std::vector<Segment> segments_of(const LayerSizes& sizes, const grid::Layout& layout, int stage) {
  return cut_into_segments(layout.layers_of(stage).count, sizes.recompute);
}

}  // namespace

// Masks differ from micro-batch to micro-batch, and exchanges with other ranks are not recorded.
template <typename Work>
void GptStage::run_layer(LayerRecordings::Pass kind, int slot, int layer, const PassInfo& pass,
                         const void* gradient, const Work& work) {
  const ModelConfig& config = context_.config;
  const bool drops =
      pass.training && (config.hidden_dropout > 0.0 || config.attention_dropout > 0.0);
  if (context_.tokens() > kMostRecordedTokens || context_.tensor_ranks > 1 || drops) return work();
  recordings_.run(context_.backend, {kind, slot, slots_[slot].chunk, layer, gradient}, work);
}

GptStage::Again GptStage::Again::take(Arena& arena, const LayerSizes& sizes,
                                      const std::vector<Segment>& segments) {
  int longest = 0;
  for (const Segment& segment : segments)
    if (segment.again) longest = std::max(longest, segment.count);
  Again again;
  for (int layer = 0; layer < longest; ++layer) {
    if (layer > 0) again.streams.push_back(take_stream(arena, sizes));
    again.layers.push_back(LayerActivations::take(arena, sizes));
  }
  if (sizes.recompute.what == Recompute::What::norms)
    again.norm = LayerActivations::take_norm(arena, sizes);
  return again;
}

GptStage::Slot GptStage::Slot::take(Arena& arena, const LayerSizes& sizes,
                                    const std::vector<Segment>& segments, const Again& again,
                                    const KeptInputs& inputs, int slot_index, bool first) {
  Slot slot;
  if (first) {
    slot.ids = arena.take_ints(sizes.tokens());
    if (sizes.config.reset_positions) slot.positions = arena.take_ints(sizes.tokens());
    slot.embedding = Embedding::Activations::take(arena, sizes);
  }
  if (sizes.config.reset_attention) slot.document_start = arena.take_ints(sizes.tokens());
  for (int i = 0; i < std::ssize(segments); ++i)
    for (int layer = 0; layer < segments[i].count; ++layer) {
      const bool computed_again = segments[i].again;
      slot.streams.push_back(!computed_again ? take_stream(arena, sizes)
                             : layer == 0    ? inputs.at_hand(slot_index, i)
                                             : again.streams[layer - 1]);
      slot.layers.push_back(computed_again ? again.layers[layer]
                                           : LayerActivations::take(arena, sizes, again.norm));
    }
  slot.streams.push_back(take_stream(arena, sizes));
  return slot;
}

GptStage::Ending GptStage::Ending::take(Arena& arena, const LayerSizes& sizes) {
  Ending ending;
  ending.labels = arena.take_ints(sizes.tokens());
  ending.head = Head::Activations::take(arena, sizes);
  return ending;
}

GptStage::Activations GptStage::Activations::take(Arena& arena, Arena& host,
                                                  const LayerSizes& sizes,
                                                  const grid::Layout& layout, int stage,
                                                  int slots) {
  const std::vector<Segment> segments = segments_of(sizes, layout, stage);
  const auto again_segments = std::count_if(segments.begin(), segments.end(),
                                            [](const Segment& segment) { return segment.again; });
  Activations all;
  all.inputs = KeptInputs::take(arena, host, sizes, static_cast<int>(again_segments), slots);
  const Again again = Again::take(arena, sizes, segments);
  for (int slot = 0; slot < slots; ++slot)
    all.slots.push_back(
        Slot::take(arena, sizes, segments, again, all.inputs, slot, layout.is_first(stage)));
  if (layout.is_last(stage)) all.ending = Ending::take(arena, sizes);
  return all;
}

GptStage::Scratch GptStage::Scratch::take(Arena& arena, const LayerSizes& sizes) {
  Scratch scratch;
  scratch.layer = LayerWorkspace::take(arena, sizes);
  scratch.loss = arena.take(DType::f64, {1});
  for (Tensor& gradient : scratch.gradients)
    gradient = arena.take(sizes.dtype, sizes.stream_shape());
  return scratch;
}

StageMemory GptStage::plan(const LayerSizes& sizes, const grid::Layout& layout, int stage,
                           int slots) {
  Arena activations, host, workspace;
  Activations::take(activations, host, sizes, layout, stage, slots);
  const Scratch scratch = Scratch::take(workspace, sizes);
  const std::size_t exchanged = 2 * scratch.gradients[0].bytes();
  return {activations.bytes(), workspace.bytes() - exchanged, exchanged, host.bytes()};
}

GptStage::GptStage(const LayerContext& context, const ParameterStore& parameters,
                   const grid::Layout& layout, int stage, int slots)
    : context_(context),
      common_{0, parameters.placement().common_size},
      segments_(segments_of(context, layout, stage)) {
  if (layout.is_first(stage)) embedding_.emplace(parameters, context.config);
  auto matrices = parameters.placement().layers.begin();
  for (int chunk = 0; chunk < layout.chunks; ++chunk) {
    const auto [first, count] = layout.layers_of(stage, chunk);
    Chunk& made = chunks_.emplace_back();
    for (int layer = first; layer < first + count; ++layer) {
      made.layers.emplace_back(parameters, layer);
      made.matrices.push_back(*matrices++);
    }
  }
  if (layout.is_last(stage)) head_.emplace(parameters);

  const StageMemory memory = plan(context, layout, stage, slots);
  if (memory.host > 0)
    host_memory_ = context.backend.allocate_on_host(memory.host, "activations (recompute.offload)");
  activation_memory_ = context.backend.allocate(memory.activations, "activations");
  workspace_memory_ =
      context.backend.allocate(memory.workspace + memory.communication, "workspace");
  shared_activations_ = context.tensor.share(activation_memory_.get(), memory.activations);
  shared_workspace_ =
      context.tensor.share(workspace_memory_.get(), memory.workspace + memory.communication);
  Arena activations(activation_memory_.get()), host(host_memory_.get());
  Arena workspace(workspace_memory_.get());
  Activations all = Activations::take(activations, host, context, layout, stage, slots);
  inputs_ = std::move(all.inputs);
  slots_ = std::move(all.slots);
  ending_ = all.ending;
  scratch_ = Scratch::take(workspace, context);
  if (shared_workspace_) context.tensor.lend(scratch_.layer.lent.data, scratch_.layer.lent.bytes());

  const bool resets = context.config.reset_positions || context.config.reset_attention;
  TRIREME_CHECK(!resets || context.config.eod, "documents' ends are not known");
  if (!resets) return;
  starts_.resize(context.tokens());
  positions_.resize(context.tokens());
}

void GptStage::load(int slot_index, const MicroBatch& batch, int chunk) {
  Slot& slot = slots_[slot_index];
  const std::size_t bytes = context_.tokens() * sizeof(std::int32_t);
  slot.chunk = chunk;
  slot.first_sample = batch.first_sample;
  if (has_embedding(chunk)) context_.backend.upload(slot.ids, batch.ids.data(), bytes);
  if (has_head(chunk)) context_.backend.upload(ending_.labels, batch.labels.data(), bytes);
  const bool positions = slot.positions && has_embedding(chunk);
  if (positions || slot.document_start) load_documents(slot, batch.ids, positions);
}

void GptStage::load_documents(const Slot& slot, std::span<const std::int32_t> ids, bool positions) {
  const std::size_t bytes = starts_.size() * sizeof(std::int32_t);
  find_document_starts(ids, context_.micro_batch, *context_.config.eod, starts_);
  if (slot.document_start) context_.backend.upload(slot.document_start, starts_.data(), bytes);
  if (!positions) return;
  positions_in_documents(starts_, context_.micro_batch, positions_);
  context_.backend.upload(slot.positions, positions_.data(), bytes);
}

void GptStage::forward(int slot_index, bool training, std::optional<double> loss_scale) {
  const Slot& slot = slots_[slot_index];
  const Chunk& chunk = chunks_[slot.chunk];
  const PassInfo pass = pass_of(slot, training);
  if (observer_)
    observer_->before_reading(common_, chunk.matrices.empty() ? Range{} : chunk.matrices.front());
  if (has_embedding(slot.chunk))
    embedding_->forward(context_, pass, {.ids = slot.ids, .positions = slot.positions},
                        slot.embedding, slot.streams.front(), scratch_.layer.stream);
  const int layers = static_cast<int>(chunk.layers.size());
  const bool keeps = loss_scale.has_value();
  for (int k = 0; k < std::ssize(segments_); ++k) {
    const Segment& segment = segments_[k];
    if (keeps && segment.again) inputs_.start_keeping(context_, slot_index, k);
    for (int i = segment.first; i < segment.end(); ++i) {
      before_reading(chunk, i, i + 1 < layers ? i + 1 : -1);
      run_layer(Pass::forward, slot_index, i, pass, nullptr, [&] {
        chunk.layers[i].forward(context_, scratch_.layer, pass, slot.streams[i], slot.layers[i],
                                slot.streams[i + 1]);
      });
    }
    if (keeps && segment.again) inputs_.finish_keeping(context_);
  }
  if (has_head(slot.chunk)) {
    ending_.slot = slot_index;
    head_->forward(context_, slot.streams.back(), ending_.labels, loss_scale, ending_.head,
                   scratch_.loss);
  }
}

void GptStage::backward(int slot, const Tensor& gradient, bool last) {
  run_backward(slot, gradient, /*with_weights=*/true, last);
}

void GptStage::backward_input(int slot, const Tensor& gradient) {
  TRIREME_CHECK(context_.recompute.what == Recompute::What::nothing,
                "weight gradients are put off, but what they need is not kept");
  run_backward(slot, gradient, /*with_weights=*/false, /*last=*/false);
}

void GptStage::run_backward(int slot_index, const Tensor& gradient, bool with_weights, bool last) {
  const Slot& slot = slots_[slot_index];
  const Chunk& chunk = chunks_[slot.chunk];
  const PassInfo pass = pass_of(slot, /*training=*/true);
  const Tensor beside = scratch_.layer.stream;
  inputs_.start_fetching(context_, slot_index, inputs_.segments() - 1);
  if (has_head(slot.chunk)) {
    TRIREME_CHECK(ending_.slot == slot_index, "the head keeps slot {}, not {}", ending_.slot,
                  slot_index);
    head_->backward(context_, slot.streams.back(), ending_.head, gradient);
  }
  for (int k = static_cast<int>(segments_.size()); k-- > 0;) {
    const Segment& segment = segments_[k];
    if (segment.again) {
      inputs_.finish_fetching(context_, slot_index, k);
      inputs_.start_fetching(context_, slot_index, k - 1);
      forward_again(slot_index, segment, pass);
    }
    for (int i = segment.end(); i-- > segment.first;) {
      before_reading(chunk, i, read_after(segment, i));
      if (with_weights) before_adding(chunk, i);
      const auto kept = ProductGradients::over(slot.layers[i], slot.streams[i + 1]);
      run_layer(with_weights ? Pass::backward : Pass::backward_input, slot_index, i, pass,
                gradient.data, [&] {
                  chunk.layers[i].backward(context_, scratch_.layer, pass, slot.streams[i],
                                           slot.layers[i], gradient,
                                           with_weights ? nullptr : &kept);
                });
      if (with_weights) after_adding(chunk, i, last);
    }
  }
  if (has_embedding(slot.chunk))
    embedding_->backward(context_, pass, {.ids = slot.ids, .positions = slot.positions},
                         slot.embedding, gradient, beside);
}

void GptStage::forward_again(int slot_index, const Segment& segment, const PassInfo& pass) {
  const Slot& slot = slots_[slot_index];
  const Chunk& chunk = chunks_[slot.chunk];
  for (int i = segment.first; i < segment.end(); ++i) {
    before_reading(chunk, i, i + 1 < segment.end() ? i + 1 : -1);
    // Nobody needs what the segment puts out: the passes behind it are done.
    const Tensor output = i + 1 < segment.end() ? slot.streams[i + 1] : Tensor();
    run_layer(Pass::forward_again, slot_index, i, pass, nullptr, [&] {
      chunk.layers[i].forward(context_, scratch_.layer, pass, slot.streams[i], slot.layers[i],
                              output);
    });
  }
}

int GptStage::read_after(const Segment& segment, int layer) const {
  if (layer > segment.first) return layer - 1;
  if (layer == 0) return -1;
  const Segment& before = *std::find_if(segments_.begin(), segments_.end(),
                                        [&](const Segment& s) { return s.end() == layer; });
  return before.again ? before.first : layer - 1;
}

void GptStage::backward_weights(int slot_index, bool last) {
  const Slot& slot = slots_[slot_index];
  const Chunk& chunk = chunks_[slot.chunk];
  for (int i = static_cast<int>(chunk.layers.size()); i-- > 0;) {
    before_adding(chunk, i);
    run_layer(Pass::backward_weights, slot_index, i, pass_of(slot, /*training=*/true), nullptr,
              [&] {
                chunk.layers[i].backward_weights(
                    context_, scratch_.layer, slot.layers[i],
                    ProductGradients::over(slot.layers[i], slot.streams[i + 1]));
              });
    after_adding(chunk, i, last);
  }
}

double GptStage::loss_sum() {
  double sum = 0.0;
  context_.backend.download(&sum, scratch_.loss.data, sizeof sum);
  return sum;
}

void GptStage::reset_loss() { context_.backend.zero(scratch_.loss); }

}  // namespace trireme::model
