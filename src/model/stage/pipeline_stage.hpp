// One pipeline stage of a model: the embedding if it is the first, its transformer blocks in one or
// more chunks, the head if it is the last.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "device/backend.hpp"
#include "model/parameters/store.hpp"
#include "model/stage/stage_memory.hpp"

namespace trireme::model {

/// The captured passes of a stage.
class CudaGraphs {
 public:
  enum class Pass { forward, recompute_forward, backward, backward_input, backward_weights };
  /// All that the kernels of a pass depend on: which layer of which chunk, the slot whose
  /// activations it works on, whether dropout is on, and where a backward pass finds the gradient.
  struct Key {
    Pass pass;
    int slot;
    int chunk;
    int layer;
    bool drops;
    const void* gradient = nullptr;

    auto operator<=>(const Key&) const = default;
  };

  /// Runs `work`, the pass of `key`: the first time as it is, then captured where the backend and
  /// the tensor group capture. Collective over that group.
  void run(const LayerContext& context, const Key& key, const std::function<void()>& work);

 private:
  struct Graph {
    bool tried = false;  ///< to capture it; the rest is null where that cannot be
    std::unique_ptr<comm::CapturedCollectives> collectives;
    std::unique_ptr<device::CapturedWork> work;
  };
  static Graph capture(const LayerContext& context, const std::function<void()>& work);

  std::map<Key, Graph> graphs_;
};

/// Host memory of one micro-batch. Token (i, j), position i of sample j, stands at [i * micro_batch
/// + j]. The last three are for models that have token types, padding or sentence classes.
struct MicroBatch {
  std::span<const std::int32_t> ids;     ///< [s * b]; all stages need it for reset_attention
  std::span<const std::int32_t> labels;  ///< [s * b], -1 where the token does not count
  std::uint64_t first_sample = 0;        ///< index in the run of sample 0; keys dropout
  std::span<const std::int32_t> token_types = {};      ///< [s * b]
  std::span<const std::int32_t> lengths = {};          ///< [b], tokens before the padding
  std::span<const std::int32_t> sentence_labels = {};  ///< [b], -1 where there is none
};

/// A stage with memory for `slots` micro-batches between their forward and their backward through
/// one of its chunks; but the head keeps one micro-batch at a time. A chunk is a list of segments,
/// see Recompute: a slot has the activations of those that are kept, all slots share those of one
/// that is recomputed, of which SegmentInputs has each slot's input. Allocates everything when
/// made. Making and destroying one is collective over the tensor group.
class PipelineStage {
 public:
  /// `parameters` must hold the stage's weights and outlive it, as must the backend and the tensor
  /// group.
  PipelineStage(const StageConfig& config, device::Backend& backend, comm::Communicator& tensor,
                const ParameterStore& parameters, const grid::Layout& layout, int stage, int slots);

  /// The memory a stage will take, without making it.
  static StageMemory plan(const StageConfig& config, const grid::Layout& layout, int stage,
                          int slots);

  /// Where the activations from the previous virtual stage belong: [S, b, h], this rank's part of
  /// the residual stream. Not used by the first one.
  Tensor input(int slot) const { return slots_[slot].streams.front(); }
  /// What the next virtual stage gets: [S, b, h].
  Tensor output(int slot) const { return slots_[slot].streams.back(); }
  /// The two places where the gradient of output() may be received; backward() turns it into that
  /// of input().
  Tensor gradient(int which) const { return scratch_.gradients[which]; }

  /// Assigns `slot` to a micro-batch on its way through `chunk`. Uploads what of its tokens is
  /// needed: ids for the embedding, labels for the head, where documents begin for attention.
  void load(int slot, const MicroBatch& batch, int chunk = 0);

  /// Runs the micro-batch in `slot` forward. Where the head is, the loss is added to loss_sum().
  /// `training` turns dropout on. With `loss_scales` backward() must follow; the logits are then
  /// overwritten. Collective over the tensor group.
  void forward(int slot, bool training, const std::optional<LossScales>& loss_scales = {});

  /// Runs it backward. The head, whose latest forward this must have been, starts from the scaled
  /// sums of its losses; others find the gradient of output() in `gradient`. Leaves the gradient
  /// of input() in `gradient`. Adds to the weight gradients; `last` says that no other pass of this
  /// step will to those of this chunk or a later one. Collective over the tensor group.
  void backward(int slot, const Tensor& gradient, bool last = false);

  /// backward() in two parts: backward_input() does all but the gradients of the layers' weight
  /// matrices, which backward_weights() adds. Not with layers that are recomputed. Both are
  /// collective over the tensor group.
  void backward_input(int slot, const Tensor& gradient);
  void backward_weights(int slot, bool last = false);

  /// Calls `hooks` in all passes from now on; null: none. They must outlive the passes.
  void set_hooks(ParameterHooks* hooks) { hooks_ = hooks; }

  /// The fp32 weights of the embedding, which passes read from now on: find(name) is the master
  /// weight of a parameter, in its local shape. With StageConfig::fp32_embedding it must be called
  /// before the first pass.
  void set_master_weights(const std::function<Tensor(const std::string& name)>& find);

  /// The loss summed over the tokens of all micro-batches since begin_batch(); 0 but on the last
  /// stage.
  double loss_sum();
  /// The same of the sentence labels; 0 without sentence classes.
  double sentence_loss_sum();
  /// The largest logit of the tokens with labels of all micro-batches since begin_batch();
  /// -infinity but on the last stage.
  double largest_logit();
  /// Before the first pass of a batch: sets both to 0, and makes the passes of the batch cast the
  /// weights to FP8 anew, which may have changed.
  void begin_batch();

  /// Whether load() reads the tokens of what comes through `chunk`.
  bool reads_tokens(int chunk) const {
    const DocumentSpec& documents = config_.spec.documents;
    return has_embedding(chunk) || has_head(chunk) || config_.spec.padding ||
           documents.reset_attention || (documents.reset_positions && is_rotary());
  }
  bool is_first() const { return layers_.embedding.has_value(); }
  bool is_last() const { return layers_.head.has_value(); }
  /// Whether `chunk` begins with the embedding, and whether it ends with the head.
  bool has_embedding(int chunk) const { return is_first() && chunk == 0; }
  bool has_head(int chunk) const { return is_last() && chunk + 1 == std::ssize(layers_.chunks); }

  /// Calls `observer` in every forward() without loss scales through the head; empty: none.
  void observe_head(Head::Observer observer) { head_observer_ = std::move(observer); }

  /// Logits after a forward() without a loss scale through the head: [T, local vocabulary columns].
  /// For tests and evaluation.
  Tensor logits() const { return head_.head.logits; }
  /// The same of the sentence head: [b, classes], alike on all tensor ranks; empty without one.
  Tensor sentence_logits() const { return head_.head.sentence.logits; }

 private:
  /// Uploads `values` to `to`, if the model has it; throws InternalError unless it has `count`.
  void upload(std::int32_t* to, std::span<const std::int32_t> values, std::int64_t count,
              const char* name);
  /// Uploads what depends on where documents begin; the positions only if asked to.
  void load_documents(const Slot& slot, std::span<const std::int32_t> ids, bool positions);
  PassInfo pass_of(const Slot& slot, bool training) const {
    return {.training = training,
            .seed = config_.spec.seed,
            .first_sample = slot.first_sample,
            .document_start = slot.document_start,
            .positions = is_rotary() ? slot.positions : nullptr,
            .lengths = slot.lengths};
  }

  bool is_rotary() const { return config_.spec.embedding.position == PositionKind::rotary; }

  /// The value of `sum` [1] f64.
  double download(const Tensor& sum);
  /// Runs `work`, a pass through block `block` in `slot`, as a CUDA graph where that gains.
  template <typename Work>
  void run_block(CudaGraphs::Pass kind, int slot, int block, const PassInfo& pass,
                 const void* gradient, const Work& work);
  /// backward(), with or without the weight matrices.
  void run_backward(int slot, const Tensor& gradient, bool with_weights, bool last);
  /// Recomputes what the backward pass through `segment` needs, from the input of its first block.
  void recompute_forward(int slot, const Segment& segment, const PassInfo& pass);
  /// At the begin of a pass: see Fp8Workspace::amaxes.
  void clear_amaxes();
  /// The block that a backward pass reads after block `block` of `segment`; -1: none.
  int read_after(const Segment& segment, int block) const;

  const std::vector<TransformerBlock>& blocks(int chunk) const { return layers_.chunks[chunk]; }
  /// Tells the hooks that block `block` is about to be read, and `next` after it; -1: unknown.
  /// Then makes the FP8 copies of its weights unless they are there.
  void before_use(int chunk, int block, int next);
  void before_gradient(int chunk, int block) const {
    if (hooks_) hooks_->before_gradient(matrices_[chunk][block]);
  }
  void gradient_ready(int chunk, int block, bool complete) const {
    if (hooks_) hooks_->gradient_ready(matrices_[chunk][block], complete);
  }

  StageConfig config_;
  LayerContext context_;
  ParameterHooks* hooks_ = nullptr;
  Head::Observer head_observer_;
  StageLayers layers_;
  Range common_;  ///< elements of the parameters that are not blocks' matrices
  std::vector<std::vector<Range>> matrices_;  ///< of each block of each chunk
  std::vector<Segment> segments_;             ///< of each chunk: all have as many blocks
  /// Whether the FP8 copies of the weights of each block of each chunk are those of this batch.
  std::vector<std::vector<bool>> is_cast_;
  device::Buffer fp8_weight_memory_;
  device::Buffer host_memory_;  ///< gone after the others, which wait for copies
  device::Buffer activation_memory_;
  device::Buffer workspace_memory_;
  std::unique_ptr<comm::RegisteredBuffer> shared_activations_,
      shared_workspace_;  ///< gone before them
  SegmentInputs inputs_;
  std::vector<Slot> slots_;
  HeadSlot head_;
  StageScratch scratch_;
  Embedding::Fp32 fp32_embedding_;  ///< empty without StageConfig::fp32_embedding
  bool captures_ = false;           ///< passes as CUDA graphs
  CudaGraphs graphs_;
  std::vector<std::int32_t> starts_, positions_;  ///< on the host, of the micro-batch being loaded
};

}  // namespace trireme::model
