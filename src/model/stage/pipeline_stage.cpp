#include "model/stage/pipeline_stage.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/error.hpp"
#include "device/timers.hpp"
#include "model/stage/stage_memory.hpp"

namespace trireme::model {
namespace {

Embedding::Tokens tokens_of(const Slot& slot) {
  return {.ids = slot.ids, .positions = slot.positions, .types = slot.token_types};
}

/// Tokens of a micro-batch up to which blocks are captured as CUDA graphs. GPUs compute longer on
/// more than hosts take to enqueue.
constexpr std::int64_t kMaxCapturedTokens = 8192;
/// The same among tensor ranks, in tokens times the square of `hidden` for each rank. Copy engines
/// leave all SMs to GEMMs, but in a graph kernels sum over the ranks: it pays where the host takes
/// about as long as the GPU. To enqueue a block's backward pass takes a host 225 us, as a graph 26:
/// 1600 features and 1024 tokens on two ranks are at the limit, on H200s.
constexpr std::int64_t kMaxCapturedWork = std::int64_t{1} << 31;

/// Whether a stage captures passes; `registered`: its memory is, with the tensor group.
bool captures_passes(const LayerContext& context, bool registered) {
  const std::int64_t ranks = context.tensor_ranks, tokens = context.tokens();
  if (tokens > kMaxCapturedTokens) return false;
  if (ranks == 1) return true;
  if (!registered || tokens * context.hidden * context.hidden > ranks * kMaxCapturedWork)
    return false;
  // NCCL finds the largest magnitudes of FP8, and is not captured. GEMMs that take the parts of a
  // gather as they come gain more than graphs do.
  const std::size_t part = context.shard_rows().size() * size_of(context.precision.activations);
  return !is_fp8(context.precision.gemm) &&
         (context.sp_ranks() == 1 || part < comm::min_gather_bytes(ranks));
}

}  // namespace

CudaGraphs::Graph CudaGraphs::capture(const LayerContext& context,
                                      const std::function<void()>& work) {
  Graph graph{.tried = true};
  graph.work = context.backend.capture([&] { graph.collectives = context.tensor.capture(work); });
  if (!graph.collectives) graph.work.reset();
  return graph;
}

void CudaGraphs::run(const LayerContext& context, const Key& key,
                     const std::function<void()>& work) {
  const auto [known, is_first] = graphs_.try_emplace(key);
  Graph& graph = known->second;
  if (!is_first && !graph.tried) graph = capture(context, work);
  if (!graph.work) return work();
  graph.collectives->run([&] { graph.work->replay(); });
}

using Pass = CudaGraphs::Pass;

template <typename Work>
void PipelineStage::run_block(CudaGraphs::Pass kind, int slot, int block, const PassInfo& pass,
                              const void* gradient, const Work& work) {
  if (!captures_) return work();
  const bool drops = pass.training && pass.first_sample;
  graphs_.run(context_, {kind, slot, slots_[slot].chunk, block, drops, gradient}, work);
}

StageMemory PipelineStage::plan(const StageConfig& config, const grid::Layout& layout, int stage,
                                int slots) {
  StageLayers layers(config, layout, stage);
  return plan_memory(config, layers, slots);
}

PipelineStage::PipelineStage(const StageConfig& config, device::Backend& backend,
                             comm::Communicator& tensor, const ParameterStore& parameters,
                             const grid::Layout& layout, int stage, int slots)
    : config_(config),
      context_(config.sizes(), backend, tensor),
      layers_(config, layout, stage),
      common_{0, parameters.placement().common_size},
      segments_(segments_of(config, layers_)) {
  layers_.bind(parameters);
  auto matrices = parameters.placement().layers.begin();
  for (const auto& chunk : layers_.chunks) {
    matrices_.emplace_back(matrices, matrices + std::ssize(chunk));
    is_cast_.emplace_back(chunk.size(), false);
    matrices += std::ssize(chunk);
  }

  const StageMemory memory = plan_memory(config, layers_, slots);
  if (memory.fp8_weights > 0) {
    fp8_weight_memory_ = backend.allocate(memory.fp8_weights, "FP8 copies of weights");
    Arena fp8_weights(fp8_weight_memory_.get());
    layers_.take_fp8_weights(fp8_weights, config);
  }
  if (memory.host > 0)
    host_memory_ = backend.allocate_on_host(memory.host, "activations (recompute.offload)");
  activation_memory_ = backend.allocate(memory.activations, "activations");
  workspace_memory_ = backend.allocate(memory.workspace + memory.communication, "workspace");
  shared_activations_ = tensor.register_buffer(activation_memory_.get(), memory.activations);
  shared_workspace_ =
      tensor.register_buffer(workspace_memory_.get(), memory.workspace + memory.communication);
  Arena activations(activation_memory_.get()), host(host_memory_.get());
  Arena workspace(workspace_memory_.get());
  StageActivations all = StageActivations::take(activations, host, config, layers_, slots);
  inputs_ = std::move(all.inputs);
  slots_ = std::move(all.slots);
  head_ = all.head;
  scratch_ = StageScratch::take(workspace, config, layers_);
  constexpr double kLowest = -std::numeric_limits<double>::infinity();
  for (const std::int64_t i : {2, 3})
    backend.upload(scratch_.losses.rows(i, 1).data, &kLowest, sizeof kLowest);
  context_.fp8 = scratch_.fp8;
  context_.rotary = scratch_.rotary;
  write_rotary_table(backend, config.spec, scratch_.rotary);
  if (shared_workspace_)
    tensor.set_staging_buffer(scratch_.layer.staging.data, scratch_.layer.staging.bytes(),
                              comm::min_reduce_scatter_bytes(tensor.size()));

  captures_ = captures_passes(context_, shared_activations_ && shared_workspace_);

  const DocumentSpec& documents = config.spec.documents;
  const bool resets = documents.reset_positions || documents.reset_attention;
  TRIREME_CHECK(!resets || documents.eod, "documents' ends are not known");
  if (!resets && !config.spec.has_first_keys()) return;
  starts_.resize(context_.tokens());
  positions_.resize(context_.tokens());
}

void PipelineStage::set_master_weights(const std::function<Tensor(const std::string& name)>& find) {
  if (layers_.embedding && config_.fp32_embedding)
    fp32_embedding_ = layers_.embedding->find_fp32(find, scratch_.embedding);
}

void PipelineStage::load(int slot_index, const MicroBatch& batch, int chunk) {
  const device::NamedRange range({"copy-tokens"});
  Slot& slot = slots_[slot_index];
  const std::int64_t tokens = context_.tokens(), samples = context_.micro_batch;
  slot.chunk = chunk;
  if (slot.first_sample)
    context_.backend.upload(slot.first_sample, &batch.first_sample, sizeof batch.first_sample);
  if (has_embedding(chunk)) {
    upload(slot.ids, batch.ids, tokens, "token ids");
    upload(slot.token_types, batch.token_types, tokens, "token types");
  }
  if (has_head(chunk)) {
    upload(head_.labels, batch.labels, tokens, "labels");
    upload(head_.sentence_labels, batch.sentence_labels, samples, "sentence labels");
  }
  upload(slot.lengths, batch.lengths, samples, "lengths");
  const bool positions = slot.positions && (has_embedding(chunk) || is_rotary());
  if (positions || slot.document_start) load_documents(slot, batch.ids, positions);
}

void PipelineStage::upload(std::int32_t* to, std::span<const std::int32_t> values,
                           std::int64_t count, const char* name) {
  if (!to) return;
  TRIREME_CHECK(std::ssize(values) == count, "a micro-batch has {} {}, not {}", values.size(), name,
                count);
  context_.backend.upload(to, values.data(), values.size_bytes());
}

void PipelineStage::load_documents(const Slot& slot, std::span<const std::int32_t> ids,
                                   bool positions) {
  const std::size_t bytes = starts_.size() * sizeof(std::int32_t);
  const DocumentSpec& documents = config_.spec.documents;
  if (positions || documents.reset_attention)
    find_document_starts(ids, context_.micro_batch, *documents.eod, starts_);
  if (positions) {
    positions_in_documents(starts_, context_.micro_batch, positions_);
    context_.backend.upload(slot.positions, positions_.data(), bytes);
  }
  if (!slot.document_start) return;
  if (!documents.reset_attention) std::fill(starts_.begin(), starts_.end(), 0);
  if (config_.spec.window() > 0)
    narrow_to_window(config_.spec.window(), context_.micro_batch, starts_);
  context_.backend.upload(slot.document_start, starts_.data(), bytes);
}

void PipelineStage::forward(int slot_index, bool training,
                            const std::optional<LossScales>& loss_scales) {
  const Slot& slot = slots_[slot_index];
  const int chunk = slot.chunk;
  const PassInfo pass = pass_of(slot, training);
  clear_amaxes();
  if (hooks_)
    hooks_->before_use(common_, matrices_[chunk].empty() ? Range{} : matrices_[chunk].front());
  if (has_embedding(chunk)) {
    TRIREME_CHECK(!config_.fp32_embedding || fp32_embedding_.sum,
                  "the embedding has no master weights");
    layers_.embedding->forward(context_, pass, tokens_of(slot), slot.embedding,
                               slot.streams.front(), scratch_.layer.hidden, fp32_embedding_);
  }
  const int layers = static_cast<int>(blocks(chunk).size());
  const bool keeps = loss_scales.has_value();
  for (int k = 0; k < std::ssize(segments_); ++k) {
    const Segment& segment = segments_[k];
    if (keeps && segment.recomputed) inputs_.start_keeping(context_, slot_index, k);
    bool joined = false;
    for (int i = segment.first; i < segment.end(); ++i) {
      before_use(chunk, i, i + 1 < layers ? i + 1 : -1);
      BlockJoints joints{.has_norm1 = joined};
      // Blocks that are recomputed start from their input.
      joined = !segment.recomputed && i + 1 < segment.end() &&
               blocks(chunk)[i].joins(blocks(chunk)[i + 1]);
      if (joined) {
        joints.next = &blocks(chunk)[i + 1];
        joints.next_saved = &slot.blocks[chunk][i + 1];
      }
      run_block(Pass::forward, slot_index, i, pass, nullptr, [&] {
        blocks(chunk)[i].forward(context_, scratch_.layer, pass, slot.streams[i],
                                 slot.blocks[chunk][i], slot.streams[i + 1], joints);
      });
    }
    if (keeps && segment.recomputed) inputs_.finish_keeping(context_);
  }
  if (has_head(chunk)) {
    head_.slot = slot_index;
    layers_.head->forward(context_, slot.streams.back(), {head_.labels, head_.sentence_labels},
                          loss_scales, head_.head, scratch_.losses, head_observer_);
  }
}

void PipelineStage::backward(int slot, const Tensor& gradient, bool last) {
  run_backward(slot, gradient, /*with_weights=*/true, last);
}

void PipelineStage::backward_input(int slot, const Tensor& gradient) {
  TRIREME_CHECK(config_.recompute.what == Recompute::What::nothing,
                "weight gradients are deferred, but the activations that they need are not kept");
  run_backward(slot, gradient, /*with_weights=*/false, /*last=*/false);
}

void PipelineStage::run_backward(int slot_index, const Tensor& gradient, bool with_weights,
                                 bool last) {
  const Slot& slot = slots_[slot_index];
  const int chunk = slot.chunk;
  const PassInfo pass = pass_of(slot, /*training=*/true);
  clear_amaxes();
  inputs_.start_fetching(context_, slot_index, inputs_.segments() - 1);
  if (has_head(chunk)) {
    TRIREME_CHECK(head_.slot == slot_index, "the head keeps slot {}, not {}", head_.slot,
                  slot_index);
    layers_.head->backward(context_, slot.streams.back(), head_.head, gradient);
  }
  for (int k = static_cast<int>(segments_.size()); k-- > 0;) {
    const Segment& segment = segments_[k];
    if (segment.recomputed) {
      inputs_.finish_fetching(context_, slot_index, k);
      inputs_.start_fetching(context_, slot_index, k - 1);
      recompute_forward(slot_index, segment, pass);
    }
    for (int i = segment.end(); i-- > segment.first;) {
      before_use(chunk, i, read_after(segment, i));
      if (with_weights) before_gradient(chunk, i);
      const auto deferred = BlockGradients::over(slot.blocks[chunk][i], slot.streams[i + 1]);
      // The block after it has raised it; the head, other stages and other kinds of blocks do not.
      const auto amax_of = [&](int block) {
        const auto& all = blocks(chunk);
        const bool raised =
            block >= 0 && block + 1 < std::ssize(all) && all[block].joins(all[block + 1]);
        return raised ? all[block].gradient_amax(context_, pass, gradient) : nullptr;
      };
      Tensor of_output = gradient;
      of_output.amax = amax_of(i);
      run_block(with_weights ? Pass::backward : Pass::backward_input, slot_index, i, pass,
                gradient.data, [&] {
                  blocks(chunk)[i].backward(context_, scratch_.layer, pass, slot.streams[i],
                                            slot.blocks[chunk][i], of_output,
                                            with_weights ? nullptr : &deferred, amax_of(i - 1));
                });
      if (with_weights) gradient_ready(chunk, i, last);
    }
  }
  if (has_embedding(chunk))
    layers_.embedding->backward(context_, pass, tokens_of(slot), slot.embedding, gradient,
                                scratch_.layer.hidden);
}

void PipelineStage::clear_amaxes() {
  if (context_.fp8.amaxes) context_.backend.zero(context_.fp8.amaxes);
}

void PipelineStage::recompute_forward(int slot_index, const Segment& segment,
                                      const PassInfo& pass) {
  const device::NamedRange range({"recompute"});
  const Slot& slot = slots_[slot_index];
  const int chunk = slot.chunk;
  for (int i = segment.first; i < segment.end(); ++i) {
    before_use(chunk, i, i + 1 < segment.end() ? i + 1 : -1);
    // The output of the segment is not needed: the backward passes after it are done.
    const Tensor output = i + 1 < segment.end() ? slot.streams[i + 1] : Tensor();
    run_block(Pass::recompute_forward, slot_index, i, pass, nullptr, [&] {
      blocks(chunk)[i].forward(context_, scratch_.layer, pass, slot.streams[i],
                               slot.blocks[chunk][i], output);
    });
  }
}

int PipelineStage::read_after(const Segment& segment, int block) const {
  if (block > segment.first) return block - 1;
  if (block == 0) return -1;
  const Segment& before = *std::find_if(segments_.begin(), segments_.end(),
                                        [&](const Segment& s) { return s.end() == block; });
  return before.recomputed ? before.first : block - 1;
}

void PipelineStage::backward_weights(int slot_index, bool last) {
  const Slot& slot = slots_[slot_index];
  const int chunk = slot.chunk;
  for (int i = static_cast<int>(blocks(chunk).size()); i-- > 0;) {
    before_gradient(chunk, i);
    run_block(Pass::backward_weights, slot_index, i, pass_of(slot, /*training=*/true), nullptr,
              [&] {
                blocks(chunk)[i].backward_weights(
                    context_, scratch_.layer, slot.blocks[chunk][i],
                    BlockGradients::over(slot.blocks[chunk][i], slot.streams[i + 1]));
              });
    gradient_ready(chunk, i, last);
  }
}

double PipelineStage::loss_sum() { return download(scratch_.losses.rows(0, 1)); }
double PipelineStage::sentence_loss_sum() { return download(scratch_.losses.rows(1, 1)); }
double PipelineStage::largest_logit() { return download(scratch_.losses.rows(2, 1)); }

double PipelineStage::download(const Tensor& sum) {
  double value = 0.0;
  context_.backend.download(&value, sum.data, sizeof value);
  return value;
}

void PipelineStage::begin_batch() {
  const Tensor lowest = scratch_.losses.rows(3, 1);
  context_.backend.zero(scratch_.losses.rows(0, 2));
  context_.backend.copy(scratch_.losses.rows(2, 1).data, lowest.data, lowest.bytes());
  for (std::vector<bool>& blocks : is_cast_) std::fill(blocks.begin(), blocks.end(), false);
}

void PipelineStage::before_use(int chunk, int block, int next) {
  if (hooks_)
    hooks_->before_use(matrices_[chunk][block], next < 0 ? Range{} : matrices_[chunk][next]);
  if (!fp8_weight_memory_ || is_cast_[chunk][block]) return;
  blocks(chunk)[block].cast_weights(context_);
  if (config_.shares_fp8_weights)
    for (std::vector<bool>& blocks : is_cast_) std::fill(blocks.begin(), blocks.end(), false);
  is_cast_[chunk][block] = true;
}

}  // namespace trireme::model
