#include "model/stage/stage_memory.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "device/backend.hpp"
#include "device/timers.hpp"

namespace trireme::model {
namespace {

/// Where a block reads or writes: [S, b, h].
Tensor take_stream(Arena& arena, const StageConfig& config) {
  return arena.take(config.precision.activations, config.sizes().shard_shape());
}

/// [chunk][block], empty, for each block of a stage.
ChunkActivations empty_activations(const StageLayers& layers) {
  ChunkActivations activations;
  for (const auto& blocks : layers.chunks) activations.emplace_back(blocks.size());
  return activations;
}

/// Whether `block` may share the tensor of its norms' outputs with others.
bool shares_norms(const StageConfig& config, const TransformerBlock& block) {
  return config.recompute.what == Recompute::What::norms || !block.reads_norms(config.sizes());
}

/// The blocks with the number `index` in their chunks, in `activations`, one over the other; `norm`
/// is for those that share it.
void take_blocks(Arena& arena, const StageConfig& config, const StageLayers& layers, int index,
                 const std::optional<Tensor>& norm, ChunkActivations& activations) {
  arena.overlay(layers.chunks.size(), [&](std::size_t chunk) {
    const TransformerBlock& block = layers.chunks[chunk][index];
    activations[chunk][index] = block.take(
        arena, config.sizes(), norm && shares_norms(config, block) ? norm : std::nullopt);
  });
}

}  // namespace

StageLayers::StageLayers(const StageConfig& config, const grid::Layout& layout, int stage) {
  if (layout.is_first(stage)) embedding.emplace(config.spec);
  for (int chunk = 0; chunk < layout.chunks; ++chunk) {
    const auto [first, count] = layout.layers_of(stage, chunk);
    std::vector<TransformerBlock>& blocks = chunks.emplace_back();
    for (int layer = first; layer < first + count; ++layer) blocks.emplace_back(config.spec, layer);
  }
  if (layout.is_last(stage)) head.emplace(config.spec, config.max_loss_tokens);
}

void StageLayers::bind(const ParameterStore& parameters) {
  if (embedding) embedding->bind(parameters);
  for (auto& blocks : chunks)
    for (TransformerBlock& block : blocks) block.bind(parameters);
  if (head) head->bind(parameters);
}

void StageLayers::take_fp8_weights(Arena& arena, const StageConfig& config) {
  std::vector<TransformerBlock*> blocks;
  for (auto& chunk : chunks)
    for (TransformerBlock& block : chunk) blocks.push_back(&block);
  const auto take = [&](std::size_t i) { blocks[i]->take_fp8_weights(arena, config.sizes()); };
  if (config.shares_fp8_weights) return arena.overlay(blocks.size(), take);
  for (std::size_t i = 0; i < blocks.size(); ++i) take(i);
}

std::size_t kernel_workspace_bytes(const StageConfig& config) {
  const LayerSizes sizes = config.sizes();
  std::size_t attention = 0;
  std::int64_t widest = sizes.hidden;  // of the linears with a bias, whose gradients are sums
  if (config.spec.head.output_bias)
    widest = std::max(widest, Head(config.spec, config.max_loss_tokens).local_vocab(sizes));
  for (int layer = 0; layer < config.spec.layers(); ++layer) {
    const TransformerBlock block(config.spec, layer);
    widest = std::max(widest, block.inner_width(sizes));
    attention =
        std::max(attention, device::attention_workspace(
                                sizes.precision.activations, sizes.sequence, sizes.micro_batch,
                                block.attention().local_heads(sizes), block.attention().head_dim(),
                                block.attention().local_kv_heads(sizes)));
  }
  return std::max({device::linear_workspace(widest), device::layernorm_workspace(sizes.hidden),
                   device::embedding_workspace(sizes.tokens(), sizes.hidden),
                   device::sum_workspace(), attention});
}

std::size_t host_gemm_bytes(const StageConfig& config) {
  const LayerSizes sizes = config.sizes();
  const auto is_copied = [](DType dtype) { return dtype != accumulation_type(dtype); };
  const auto gemm = [&](std::int64_t tokens, std::int64_t columns) {
    return (tokens * sizes.hidden + columns * sizes.hidden + tokens * columns) * sizeof(float);
  };
  const Head head(config.spec, config.max_loss_tokens);
  std::size_t bytes = 0;
  if (is_copied(sizes.precision.activations))
    bytes = gemm(head.loss_tokens(sizes), head.local_vocab(sizes));
  if (!is_copied(sizes.precision.gemm)) return bytes;
  for (int layer = 0; layer < config.spec.layers(); ++layer)
    bytes = std::max(bytes,
                     gemm(sizes.tokens(), TransformerBlock(config.spec, layer).inner_width(sizes)));
  return bytes;
}

void find_document_starts(std::span<const std::int32_t> ids, std::int64_t micro_batch,
                          std::int32_t eod, std::span<std::int32_t> starts) {
  TRIREME_CHECK(ids.size() == starts.size(), "{} ids, {} starts", ids.size(), starts.size());
  const std::int64_t sequence = std::ssize(ids) / micro_batch;
  for (std::int64_t j = 0; j < micro_batch; ++j) {
    std::int32_t start = 0;
    for (std::int64_t i = 0; i < sequence; ++i) {
      starts[j * sequence + i] = start;
      if (ids[i * micro_batch + j] == eod) start = static_cast<std::int32_t>(i) + 1;
    }
  }
}

void positions_in_documents(std::span<const std::int32_t> starts, std::int64_t micro_batch,
                            std::span<std::int32_t> positions) {
  const std::int64_t sequence = std::ssize(starts) / micro_batch;
  for (std::int64_t j = 0; j < micro_batch; ++j)
    for (std::int64_t i = 0; i < sequence; ++i)
      positions[i * micro_batch + j] = static_cast<std::int32_t>(i) - starts[j * sequence + i];
}

void narrow_to_window(std::int64_t window, std::int64_t micro_batch,
                      std::span<std::int32_t> starts) {
  const std::int64_t sequence = std::ssize(starts) / micro_batch;
  for (std::int64_t j = 0; j < micro_batch; ++j)
    for (std::int64_t i = window; i < sequence; ++i) {
      std::int32_t& start = starts[j * sequence + i];
      start = std::max(start, static_cast<std::int32_t>(i - window + 1));
    }
}

std::vector<Segment> segments_of(const StageConfig& config, const StageLayers& layers) {
  return make_segments(static_cast<int>(layers.chunks.front().size()), config.recompute);
}

RecomputeBuffers RecomputeBuffers::take(Arena& arena, const StageConfig& config,
                                        const StageLayers& layers,
                                        const std::vector<Segment>& segments) {
  int longest = 0;
  for (const Segment& segment : segments)
    if (segment.recomputed) longest = std::max(longest, segment.count);
  RecomputeBuffers buffers{.blocks = empty_activations(layers), .streams = {}, .norm = {}};
  for (int i = 0; i < longest; ++i) {
    if (i > 0) buffers.streams.push_back(take_stream(arena, config));
    arena.overlay(segments.size(), [&](std::size_t s) {
      if (segments[s].recomputed && i < segments[s].count)
        take_blocks(arena, config, layers, segments[s].first + i, std::nullopt, buffers.blocks);
    });
  }
  const auto shares = [&](const TransformerBlock& block) { return shares_norms(config, block); };
  if (std::ranges::any_of(layers.chunks,
                          [&](const auto& chunk) { return std::ranges::any_of(chunk, shares); }))
    buffers.norm = TransformerBlock::take_norm(arena, config.sizes());
  return buffers;
}

Slot Slot::take(Arena& arena, const StageConfig& config, const StageLayers& layers,
                const std::vector<Segment>& segments, const RecomputeBuffers& recompute,
                const SegmentInputs& inputs, int index) {
  const DocumentSpec& documents = config.spec.documents;
  const std::int64_t tokens = config.sizes().tokens();
  Slot slot;
  if (layers.embedding) {
    slot.ids = arena.take_ints(tokens);
    if (documents.reset_positions) slot.positions = arena.take_ints(tokens);
    if (config.spec.embedding.token_types > 0) slot.token_types = arena.take_ints(tokens);
    slot.embedding = layers.embedding->take(arena, config.sizes());
  }
  const bool rotary = config.spec.embedding.position == PositionKind::rotary;
  if (documents.reset_positions && rotary && !slot.positions)
    slot.positions = arena.take_ints(tokens);
  if (config.spec.padding) slot.lengths = arena.take_ints(config.micro_batch);
  if (config.spec.has_first_keys()) slot.document_start = arena.take_ints(tokens);
  if (config.spec.has_dropout())
    slot.first_sample = static_cast<std::uint64_t*>(arena.take(DType::f64, {1}).data);
  slot.blocks = recompute.blocks;
  for (int s = 0; s < std::ssize(segments); ++s)
    for (int i = 0; i < segments[s].count; ++i) {
      const bool recomputed = segments[s].recomputed;
      slot.streams.push_back(!recomputed ? take_stream(arena, config)
                             : i == 0    ? inputs.at_hand(index, s)
                                         : recompute.streams[i - 1]);
      if (!recomputed)
        take_blocks(arena, config, layers, segments[s].first + i, recompute.norm, slot.blocks);
    }
  slot.streams.push_back(take_stream(arena, config));
  return slot;
}

StageActivations StageActivations::take(Arena& arena, Arena& host, const StageConfig& config,
                                        const StageLayers& layers, int slots) {
  const std::vector<Segment> segments = segments_of(config, layers);
  const auto recomputed = std::count_if(segments.begin(), segments.end(),
                                        [](const Segment& segment) { return segment.recomputed; });
  StageActivations all;
  all.inputs = SegmentInputs::take(arena, host, config.sizes(), config.recompute,
                                   static_cast<int>(recomputed), slots);
  const RecomputeBuffers buffers = RecomputeBuffers::take(arena, config, layers, segments);
  for (int slot = 0; slot < slots; ++slot)
    all.slots.push_back(Slot::take(arena, config, layers, segments, buffers, all.inputs, slot));
  if (layers.head) {
    all.head.labels = arena.take_ints(config.sizes().tokens());
    if (config.spec.head.sentence_classes > 0)
      all.head.sentence_labels = arena.take_ints(config.micro_batch);
    all.head.head = layers.head->take(arena, config.sizes());
  }
  return all;
}

namespace {

/// Memory for the FP8 operands of the linears of `blocks`; empty where there are none.
Fp8Workspace take_fp8_workspace(Arena& arena, const LayerSizes& sizes, int layers,
                                const std::vector<const TransformerBlock*>& blocks) {
  Fp8Sizes most;
  for (const TransformerBlock* block : blocks)
    for (const Linear* linear : block->fp8_linears()) {
      const Fp8Sizes its = linear->fp8_sizes(sizes);
      most = {.elements = std::max(most.elements, its.elements),
              .scales = std::max(most.scales, its.scales),
              .transposed_scales = std::max(most.transposed_scales, its.transposed_scales)};
    }
  if (most.elements == 0) return {};
  Fp8Workspace w;
  w.operand = arena.take(sizes.precision.gemm, {most.elements});
  w.transposed = arena.take(sizes.precision.gemm_gradients, {most.elements});
  w.scales = arena.take(DType::f32, {most.scales});
  w.transposed_scales = arena.take(DType::f32, {most.transposed_scales});
  w.amax = arena.take(DType::f32, {1});
  w.amaxes = arena.take(DType::f32, {layers * LayerPlace::kFp8Linears, 2});
  return w;
}

}  // namespace

StageScratch StageScratch::take(Arena& arena, const StageConfig& config,
                                const StageLayers& layers) {
  std::vector<const TransformerBlock*> blocks;
  for (const auto& chunk : layers.chunks)
    for (const TransformerBlock& block : chunk) blocks.push_back(&block);
  StageScratch scratch;
  scratch.layer = take_workspace(arena, config.sizes(), blocks);
  scratch.fp8 = take_fp8_workspace(arena, config.sizes(), config.spec.layers(), blocks);
  if (layers.embedding && config.fp32_embedding)
    scratch.embedding = arena.take(DType::f32, config.sizes().hidden_shape());
  if (!blocks.empty())
    scratch.rotary = take_rotary_table(arena, config.spec, config.sizes(), config.sizes().sequence);
  scratch.losses = arena.take(DType::f64, {4});
  for (Tensor& gradient : scratch.gradients) gradient = take_stream(arena, config);
  return scratch;
}

StageMemory plan_memory(const StageConfig& config, StageLayers& layers, int slots) {
  Arena fp8_weights, activations, host, workspace;
  layers.take_fp8_weights(fp8_weights, config);
  StageActivations::take(activations, host, config, layers, slots);
  const StageScratch scratch = StageScratch::take(workspace, config, layers);
  const std::size_t exchanged = 2 * scratch.gradients[0].bytes();
  return {fp8_weights.bytes(), activations.bytes(), workspace.bytes() - exchanged, exchanged,
          host.bytes()};
}

// ---- recomputation

std::vector<Segment> make_segments(int layers, const Recompute& recompute) {
  using What = Recompute::What;
  TRIREME_CHECK(recompute.layers >= 1, "groups of {} layers", recompute.layers);
  const int group = recompute.what == What::uniform ? recompute.layers : 1;
  const int recomputed = recompute.what == What::uniform ? layers
                         : recompute.what == What::block ? std::min(layers, recompute.layers)
                                                         : 0;
  std::vector<Segment> segments;
  for (int first = 0; first < recomputed; first += group)
    segments.push_back({first, std::min(group, recomputed - first), /*recomputed=*/true});
  if (recomputed < layers)
    segments.push_back({recomputed, layers - recomputed, /*recomputed=*/false});
  return segments;
}

void SegmentInputs::start_copy(const LayerContext& context, const Tensor& to,
                               const Tensor& from) const {
  const device::NamedRange range({"copy-activations"});
  if (recompute_.offload)
    context.backend.start_copy(to.data, from.data, from.bytes());
  else
    context.backend.copy(to.data, from.data, from.bytes());
}

void SegmentInputs::finish_copies(const LayerContext& context) const {
  if (!recompute_.offload) return;
  const device::NamedRange range({"wait-for-copies"});
  context.backend.finish_copies();
}

SegmentInputs SegmentInputs::take(Arena& arena, Arena& host, const LayerSizes& sizes,
                                  const Recompute& recompute, int segments, int slots) {
  TRIREME_CHECK(!recompute.partition || !sizes.sequence_parallel,
                "tensor ranks have parts of the residual stream: there is nothing to share");
  const std::int64_t shares = recompute.partition ? sizes.tensor_ranks : 1;
  const Shape stream = sizes.shard_shape();
  SegmentInputs inputs;
  inputs.recompute_ = recompute;
  inputs.kept_.resize(slots);
  for (auto& slot : inputs.kept_)
    for (int segment = 0; segment < segments; ++segment)
      slot.push_back((recompute.offload ? host : arena)
                         .take(sizes.precision.activations,
                               recompute.moves_inputs() ? Shape{stream.size() / shares} : stream));
  if (segments == 0 || !recompute.moves_inputs()) return inputs;
  const int even = std::min(slots, 2);
  for (int i = 0; i < 1 + even; ++i)
    inputs.work_.push_back(arena.take(sizes.precision.activations, stream));
  return inputs;
}

Tensor SegmentInputs::own_share(const LayerContext& context, int slot, int segment) const {
  const Tensor stream = at_hand(slot, segment);
  if (!recompute_.partition) return stream;
  const std::int64_t share = stream.size() / context.tensor_ranks;
  return stream.view({stream.size()}).rows(context.tensor.rank() * share, share);
}

void SegmentInputs::start_keeping(const LayerContext& context, int slot, int segment) const {
  if (work_.empty()) return;
  start_copy(context, kept_[slot][segment], own_share(context, slot, segment));
}

void SegmentInputs::finish_keeping(const LayerContext& context) const {
  if (!work_.empty()) finish_copies(context);
}

void SegmentInputs::start_fetching(const LayerContext& context, int slot, int segment) const {
  if (work_.empty() || segment < 0) return;
  start_copy(context, own_share(context, slot, segment), kept_[slot][segment]);
}

void SegmentInputs::finish_fetching(const LayerContext& context, int slot, int segment) const {
  if (work_.empty()) return;
  finish_copies(context);
  if (!recompute_.partition) return;
  const Tensor stream = at_hand(slot, segment);
  context.tensor.all_gather(stream.data, stream.size() / context.tensor_ranks, stream.dtype);
}

}  // namespace trireme::model
