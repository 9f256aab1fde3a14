// The layers of a pipeline stage and its memory: per micro-batch, and shared by all; and which
// blocks it recomputes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/context.hpp"
#include "model/layers/block.hpp"
#include "model/layers/embedding.hpp"
#include "model/layers/head.hpp"

namespace trireme::model {

// ---- which blocks a stage recomputes in its backward pass instead of keeping their activations
//
// Source: Chen et al., "Training deep nets with sublinear memory cost" (2016); the methods are
// those of Megatron-LM's --recompute-method.

/// What backward passes recompute. It changes no result: everything is recomputed from the same
/// inputs by the same operations, dropout being keyed by the logical element.
struct Recompute {
  enum class What {
    nothing,
    norms,    ///< the norms of every layer: little work
    uniform,  ///< every layer, in groups of `layers`
    block     ///< each of the first `layers` of a chunk
  };
  What what = What::nothing;
  int layers = 1;  ///< at least 1; of uniform and block
  /// Each tensor rank keeps a share of a segment's input: not under sequence parallelism.
  bool partition = false;
  bool offload = false;  ///< segments' inputs are kept in the host's memory

  /// Whether inputs do not stay where passes read them.
  bool moves_inputs() const { return partition || offload; }
};

/// Consecutive layers of a chunk that are all recomputed, or all kept.
struct Segment {
  int first = 0;  ///< counted from the chunk's first layer
  int count = 0;
  /// Whether only the input of its first layer is kept, from which the backward pass recomputes all
  /// else; if not, each layer's activations are kept.
  bool recomputed = false;

  int end() const { return first + count; }
  bool operator==(const Segment&) const = default;
};

/// The segments of a chunk of `layers` layers, in order.
std::vector<Segment> make_segments(int layers, const Recompute& recompute);

/// The inputs of the recomputed segments of every slot. Passes read and write them in place, unless
/// Recompute::partition keeps a shard of each, or offload keeps them in host memory. Then passes
/// use working buffers that slots share (at_hand()): the forward pass copies an input from there,
/// the backward pass fetches it back. One copy runs at a time, overlapped with a pass through the
/// segment before or after.
class SegmentInputs {
 public:
  SegmentInputs() = default;
  /// Takes them, for slots of `segments` that are recomputed, from `arena`, of the backend's
  /// memory, or with Recompute::offload from `host`; and from `arena` the working buffers.
  static SegmentInputs take(Arena& arena, Arena& host, const LayerSizes& sizes,
                            const Recompute& recompute, int segments, int slots);

  /// Segments of a slot.
  int segments() const { return static_cast<int>(kept_.front().size()); }
  /// The part of an input that this rank keeps.
  Tensor kept(int slot, int segment) const { return kept_[slot][segment]; }

  /// Where passes of `slot` have the input of `segment`: [S, b, h]. Consecutive segments have
  /// different places. Two slots may share those of their first segments, see StageWork::input().
  Tensor at_hand(int slot, int segment) const {
    if (work_.empty()) return kept_[slot][segment];
    return work_[segment % 2 == 1 ? 0 : 1 + slot % (work_.size() - 1)];
  }

  /// Starts to keep the input in the working buffer, which must not change until finish_keeping().
  void start_keeping(const LayerContext& context, int slot, int segment) const;
  void finish_keeping(const LayerContext& context) const;
  /// Starts to fetch the kept input into the working buffer, where it is after finish_fetching(),
  /// which is collective over the tensor group. Nothing for segment -1.
  void start_fetching(const LayerContext& context, int slot, int segment) const;
  void finish_fetching(const LayerContext& context, int slot, int segment) const;

 private:
  /// The part of the working buffer that this rank keeps.
  Tensor own_share(const LayerContext& context, int slot, int segment) const;

  /// Copies between a working buffer and its kept part; overlapped with what is enqueued next if
  /// that is in host memory.
  void start_copy(const LayerContext& context, const Tensor& to, const Tensor& from) const;
  void finish_copies(const LayerContext& context) const;

  Recompute recompute_;
  std::vector<std::vector<Tensor>> kept_;  ///< of each slot and segment
  /// Working buffers, none if inputs stay in place: one of the odd segments, then those of the even
  /// ones. With several slots these are two: the pipeline receives into one while a pass uses the
  /// other.
  std::vector<Tensor> work_;
};

// ---- layers and memory

/// A model and how a run trains it.
struct StageConfig {
  ModelSpec spec;
  std::int64_t micro_batch = 1;
  int tensor_ranks = 1;
  Precision precision;
  std::int64_t max_loss_tokens = Head::kMaxLossTokens;
  bool sequence_parallel = false;
  /// The embedding reads fp32 master weights: PipelineStage::set_master_weights().
  bool fp32_embedding = false;
  Recompute recompute = {};
  /// All blocks share memory for the FP8 copies of one block's weights, which are then made for
  /// each pass: where the weights themselves are sharded.
  bool shares_fp8_weights = false;

  LayerSizes sizes() const {
    return {.hidden = spec.hidden,
            .sequence = spec.sequence,
            .micro_batch = micro_batch,
            .tensor_ranks = tensor_ranks,
            .precision = precision,
            .sequence_parallel = sequence_parallel};
  }
};

/// The layers of one pipeline stage: the embedding if it is the first, its blocks in one or more
/// chunks, the head if it is the last.
struct StageLayers {
  std::optional<Embedding> embedding;
  std::vector<std::vector<TransformerBlock>> chunks;  ///< all have as many blocks
  std::optional<Head> head;

  /// Not bound to parameters yet: enough to plan memory.
  StageLayers(const StageConfig& config, const grid::Layout& layout, int stage);
  /// `parameters` must hold the stage's and outlive this.
  void bind(const ParameterStore& parameters);
  /// Takes the FP8 copies of the blocks' weights from `arena`.
  void take_fp8_weights(Arena& arena, const StageConfig& config);
};

/// Scratch memory in bytes that the CUDA kernels need for passes of such a model, at most one
/// operation at a time.
std::size_t kernel_workspace_bytes(const StageConfig& config);

/// Bytes of the fp32 copies that the host makes of the tensors of one GEMM in a 16-bit type or in
/// FP8; the head's and the MLP's are the largest.
std::size_t host_gemm_bytes(const StageConfig& config);

/// Writes the start of each token's document: starts [b, s], the position after the last `eod`
/// before the token, or 0. ids [s, b].
void find_document_starts(std::span<const std::int32_t> ids, std::int64_t micro_batch,
                          std::int32_t eod, std::span<std::int32_t> starts);

/// Writes the positions of tokens within their documents: positions [s, b], from starts [b, s].
void positions_in_documents(std::span<const std::int32_t> starts, std::int64_t micro_batch,
                            std::span<std::int32_t> positions);

/// Moves starts [b, s] of attention on, so that no token attends to more than `window`, itself
/// included.
void narrow_to_window(std::int64_t window, std::int64_t micro_batch,
                      std::span<std::int32_t> starts);

/// Bytes of a stage's memory without weights, gradients and optimizer.
struct StageMemory {
  std::size_t fp8_weights = 0;  ///< copies that FP8 GEMMs read
  std::size_t activations = 0;
  std::size_t workspace = 0;
  std::size_t communication = 0;  ///< gradients exchanged with other stages
  std::size_t host = 0;           ///< in the host's memory: activations with Recompute::offload
};

/// Activations of each block of each chunk: [chunk][block]. A slot is in one chunk at a time, so
/// that those of blocks with the same number share memory.
using ChunkActivations = std::vector<std::vector<BlockActivations>>;

/// Memory of recomputed activations, which all slots share.
struct RecomputeBuffers {
  ChunkActivations blocks;      ///< of recomputed segments; those of the others are empty
  std::vector<Tensor> streams;  ///< between the blocks of the longest such segment
  std::optional<Tensor> norm;   ///< norms' outputs of blocks that do not keep theirs
  static RecomputeBuffers take(Arena& arena, const StageConfig& config, const StageLayers& layers,
                               const std::vector<Segment>& segments);
};

/// Activations of one micro-batch between its forward and its backward through one chunk.
struct Slot {
  int chunk = 0;
  std::int32_t* ids = nullptr;
  /// [s * b], with reset_positions: on the first stage, with rotary positions on all.
  std::int32_t* positions = nullptr;
  std::int32_t* document_start = nullptr;  ///< [b * s], with ModelSpec::has_first_keys()
  std::int32_t* token_types = nullptr;     ///< [s * b], with token types on the first stage
  std::int32_t* lengths = nullptr;         ///< [b], with padding
  std::uint64_t* first_sample = nullptr;   ///< PassInfo::first_sample
  Embedding::Activations embedding;
  ChunkActivations blocks;
  std::vector<Tensor> streams;  ///< input of each block, then the output of the last

  /// Slot number `index`; refers to tensors of `recompute` and `inputs`.
  static Slot take(Arena& arena, const StageConfig& config, const StageLayers& layers,
                   const std::vector<Segment>& segments, const RecomputeBuffers& recompute,
                   const SegmentInputs& inputs, int index);
};

/// The head's activations of the micro-batch in `slot`.
struct HeadSlot {
  int slot = -1;
  std::int32_t* labels = nullptr;
  std::int32_t* sentence_labels = nullptr;  ///< [b], with sentence classes
  Head::Activations head;
};

/// All of StageMemory::activations, and of StageMemory::host.
struct StageActivations {
  SegmentInputs inputs;
  std::vector<Slot> slots;
  HeadSlot head;
  static StageActivations take(Arena& arena, Arena& host, const StageConfig& config,
                               const StageLayers& layers, int slots);
};

/// All of StageMemory::workspace and communication.
struct StageScratch {
  LayerWorkspace layer;
  Fp8Workspace fp8;
  Tensor embedding;     ///< [s, b, h] fp32: Embedding::Fp32::sum, with fp32_embedding
  Tensor rotary;        ///< LayerContext::rotary
  Tensor losses;        ///< [4] f64: of tokens, of sentences; the largest logit; -infinity
  Tensor gradients[2];  ///< last: exchanged with other stages
  static StageScratch take(Arena& arena, const StageConfig& config, const StageLayers& layers);
};

/// The segments of each chunk of `layers`: all have as many blocks.
std::vector<Segment> segments_of(const StageConfig& config, const StageLayers& layers);

/// The memory that `layers` take with `slots` micro-batches in flight.
StageMemory plan_memory(const StageConfig& config, StageLayers& layers, int slots);

}  // namespace trireme::model
