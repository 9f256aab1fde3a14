// One pipeline stage of a GPT: the embedding if it is the first, its transformer layers in one or
// more chunks, the head if it is the last.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/embedding.hpp"
#include "model/head.hpp"
#include "model/kept_inputs.hpp"
#include "model/layer_recordings.hpp"
#include "model/pass_observer.hpp"

namespace trireme::model {

/// Host memory of one micro-batch. Token (i, j), position i of sample j, stands at [i * micro_batch
/// + j].
struct MicroBatch {
  std::span<const std::int32_t> ids;     ///< [s * b]; all stages need it for reset_attention
  std::span<const std::int32_t> labels;  ///< [s * b], -1 where the token does not count
  std::uint64_t first_sample = 0;        ///< index in the run of sample 0; keys dropout
};

/// Bytes of a stage's memory beside weights, gradients and optimizer.
struct StageMemory {
  std::size_t activations = 0;
  std::size_t workspace = 0;
  std::size_t communication = 0;  ///< gradients exchanged with other stages
  std::size_t host = 0;           ///< in the host's memory: activations with Recompute::offload
};

/// A stage with memory for `slots` micro-batches between their forward and their backward through
/// one of its chunks; but the head keeps one micro-batch at a time. A chunk is a list of segments,
/// see Recompute: a slot has the activations of those that are kept, all slots share those of one
/// that is computed again, of which KeptInputs has each slot's input. Allocates everything when
/// made. Making and destroying one is collective over the tensor group.
class GptStage {
 public:
  /// `parameters` must hold the stage's weights and outlive it, as must the backend and group of
  /// `context`.
  GptStage(const LayerContext& context, const ParameterStore& parameters,
           const grid::Layout& layout, int stage, int slots);

  /// The memory a stage will take, without making it.
  static StageMemory plan(const LayerSizes& sizes, const grid::Layout& layout, int stage,
                          int slots);

  /// Where the activations from the previous link belong: [S, b, h], this rank's part of the
  /// residual stream. Not used by the first one.
  Tensor input(int slot) const { return slots_[slot].streams.front(); }
  /// What the next link gets: [S, b, h].
  Tensor output(int slot) const { return slots_[slot].streams.back(); }
  /// The two places where the gradient of output() may be received; backward() turns it into that
  /// of input().
  Tensor gradient(int which) const { return scratch_.gradients[which]; }

  /// Assigns `slot` to a micro-batch on its way through `chunk`. Uploads what of its tokens is
  /// needed: ids for the embedding, labels for the head, where documents begin for attention.
  void load(int slot, const MicroBatch& batch, int chunk = 0);

  /// Runs the micro-batch in `slot` forward. Where the head is, the loss is added to loss_sum().
  /// `training` turns dropout on. A `loss_scale` says that backward() follows; the logits are then
  /// gone. Collective over the tensor group.
  void forward(int slot, bool training, std::optional<double> loss_scale = std::nullopt);

  /// Runs it backward. The head, whose latest forward this must have been, starts from loss_scale
  /// times its summed loss; others find the gradient of output() in `gradient`. Leaves the gradient
  /// of input() in `gradient`. Adds to the weight gradients; `last` says that no other pass of this
  /// step will to those of this chunk or a later one. Collective over the tensor group.
  void backward(int slot, const Tensor& gradient, bool last = false);

  /// backward() in two parts: backward_input() does all but the gradients of the layers' weight
  /// matrices, which backward_weights() adds. Not with layers that are computed again. Both are
  /// collective over the tensor group.
  void backward_input(int slot, const Tensor& gradient);
  void backward_weights(int slot, bool last = false);

  /// Lets `observer` know about all passes from now on; null ends that. It must outlive them.
  void set_observer(PassObserver* observer) { observer_ = observer; }

  /// The loss summed over the tokens of all micro-batches since reset_loss(); 0 but on the last
  /// stage.
  double loss_sum();
  /// Sets loss_sum() to 0.
  void reset_loss();

  /// Whether load() reads the tokens of what comes through `chunk`.
  bool reads_tokens(int chunk) const {
    return has_embedding(chunk) || has_head(chunk) || context_.config.reset_attention;
  }
  bool is_first() const { return embedding_.has_value(); }
  bool is_last() const { return head_.has_value(); }
  /// Whether `chunk` begins with the embedding, and whether it ends with the head.
  bool has_embedding(int chunk) const { return embedding_ && chunk == 0; }
  bool has_head(int chunk) const { return head_ && chunk + 1 == std::ssize(chunks_); }

  /// Logits after a forward() without a loss scale through the head: [T, local vocabulary columns].
  /// For tests and evaluation.
  Tensor logits() const { return ending_.head.logits; }

 private:
  /// Memory that all slots use in turn for what is computed again.
  struct Again {
    std::vector<LayerActivations> layers;  ///< of the longest such segment
    std::vector<Tensor> streams;           ///< between its layers
    std::optional<Tensor> norm;            ///< of every layer, where none keeps its own
    static Again take(Arena& arena, const LayerSizes& sizes, const std::vector<Segment>& segments);
  };
  struct Slot {
    int chunk = 0;
    std::int32_t* ids = nullptr;
    std::int32_t* positions = nullptr;       ///< [s * b], with reset_positions on the first stage
    std::int32_t* document_start = nullptr;  ///< [b * s], with reset_attention
    std::uint64_t first_sample = 0;
    Embedding::Activations embedding;
    std::vector<LayerActivations> layers;
    std::vector<Tensor> streams;  ///< input of each layer, then the output of the last
    /// Slot number `slot`. What `again` and `inputs` have is not taken anew.
    static Slot take(Arena& arena, const LayerSizes& sizes, const std::vector<Segment>& segments,
                     const Again& again, const KeptInputs& inputs, int slot, bool first);
  };
  /// What the head keeps of the micro-batch in `slot`.
  struct Ending {
    int slot = -1;
    std::int32_t* labels = nullptr;
    Head::Activations head;
    static Ending take(Arena& arena, const LayerSizes& sizes);
  };
  /// All of StageMemory::activations, and of StageMemory::host.
  struct Activations {
    KeptInputs inputs;
    std::vector<Slot> slots;
    Ending ending;
    static Activations take(Arena& arena, Arena& host, const LayerSizes& sizes,
                            const grid::Layout& layout, int stage, int slots);
  };
  struct Scratch {
    LayerWorkspace layer;
    Tensor loss;
    Tensor gradients[2];  ///< last: what is exchanged with other stages
    static Scratch take(Arena& arena, const LayerSizes& sizes);
  };

  /// Uploads what depends on where documents begin; the positions only if asked to.
  void load_documents(const Slot& slot, std::span<const std::int32_t> ids, bool positions);
  PassInfo pass_of(const Slot& slot, bool training) const {
    return {.training = training,
            .first_sample = slot.first_sample,
            .document_start = slot.document_start};
  }

  /// Consecutive layers.
  struct Chunk {
    std::vector<TransformerLayer> layers;
    std::vector<Range> matrices;  ///< of each layer
  };

  /// Carries out `work`, a pass through layer `layer` in `slot`, recorded where that gains.
  template <typename Work>
  void run_layer(LayerRecordings::Pass kind, int slot, int layer, const PassInfo& pass,
                 const void* gradient, const Work& work);
  /// backward(), with or without the weight matrices.
  void run_backward(int slot, const Tensor& gradient, bool with_weights, bool last);
  /// Makes what the backward pass through `segment` needs, from the input of its first layer.
  void forward_again(int slot, const Segment& segment, const PassInfo& pass);
  /// The layer that a backward pass reads after layer `layer` of `segment`; -1: none.
  int read_after(const Segment& segment, int layer) const;
  /// Tells the observer that layer `layer` is about to be read, and `next` after it; -1: unknown.
  void before_reading(const Chunk& chunk, int layer, int next) const {
    if (observer_)
      observer_->before_reading(chunk.matrices[layer], next < 0 ? Range{} : chunk.matrices[next]);
  }
  void before_adding(const Chunk& chunk, int layer) const {
    if (observer_) observer_->before_adding(chunk.matrices[layer]);
  }
  void after_adding(const Chunk& chunk, int layer, bool complete) const {
    if (observer_) observer_->after_adding(chunk.matrices[layer], complete);
  }

  LayerContext context_;
  PassObserver* observer_ = nullptr;
  Range common_;  ///< elements of the parameters that are not layers' matrices
  std::optional<Embedding> embedding_;
  std::vector<Chunk> chunks_;
  std::vector<Segment> segments_;  ///< of each chunk: all have as many layers
  std::optional<Head> head_;
  device::Buffer host_memory_;  ///< gone after the others, which wait for copies
  device::Buffer activation_memory_;
  device::Buffer workspace_memory_;
  std::unique_ptr<comm::SharedMemory> shared_activations_, shared_workspace_;  ///< gone before them
  KeptInputs inputs_;
  std::vector<Slot> slots_;
  Ending ending_;
  Scratch scratch_;
  LayerRecordings recordings_;
  std::vector<std::int32_t> starts_, positions_;  ///< on the host, of the micro-batch being loaded
};

}  // namespace trireme::model
