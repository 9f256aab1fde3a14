// Step times: of the passes of a model's parts, and of a whole training step.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "deck/deck.hpp"
#include "pipeline/schedule.hpp"
#include "plan/cluster/cluster.hpp"

namespace trireme::plan {

// Time of the passes of a model's parts on a kind of GPU, from a measured profile or by formula.

/// What the time of a pass depends on.
struct ModelShape {
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t ffn = 0;
  std::int64_t heads = 0;
  std::int64_t sequence = 0;
  std::int64_t vocab = 0;
  std::int64_t tensor = 1;
  std::int64_t micro = 1;
  deck::Compute compute{};
  bool sequence_parallel = false;
  bool dropout = false;
  deck::Family family{};
  bool causal = true;
  double head_share = 1;  ///< width of all query heads over `hidden`
  double kv_share = 1;    ///< key and value heads over query heads, of a rank
  bool gated = false;     ///< an MLP with a gate: three matrices
  bool rotary = false;    ///< queries and keys are rotated
  bool biases = true;     ///< of linears
  /// Attention scores in memory, as before FlashAttention: of other programs.
  bool unfused_attention = false;
  /// Seconds in which the host enqueues a block's forward pass: of other programs. Trireme's passes
  /// are captured as CUDA graphs.
  double host_forward = 0;
  /// Under sequence parallelism GEMMs begin before the all-gathers of their inputs end: of
  /// Transformer Engine's tensor parallelism with user buffers.
  bool overlaps_gathers = false;
  /// The backward pass of a block reads the block's output: norms after the sublayers.
  bool reads_output = false;
};

/// The shape of `deck`'s model and of one of its micro-batches.
ModelShape model_shape(const deck::Deck& deck, std::int64_t vocab);

/// Where the times of passes come from.
enum class TimeSource {
  formula,    ///< of data sheets and benchmarks of kernels
  published,  ///< measured times of other programs, tensor collectives included
  profile,    ///< the formula, scaled to what `trireme-bench profile` measured
};

/// Seconds of one micro-batch's passes, on one tensor rank.
struct PassTimes {
  UnitSeconds forward;
  UnitSeconds input_gradient;
  UnitSeconds weight_gradient;
  /// GEMMs of a block's forward pass that read what tensor ranks gather. Their gradients, which are
  /// as large, overlap with collectives, too.
  double qkv = 0, fc1 = 0;
  /// What the backward pass repeats of a block whose output no recomputed block reads: all but the
  /// second linear of the MLP and the residual sum, unless reads_output.
  double recompute_full = 0;
  double recompute_output = 0;     ///< of a block: those two
  double recompute_selective = 0;  ///< of a block: norms alone
  /// Of the tensor ranks' collectives inside a node, where they are measured.
  std::optional<UnitSeconds> tensor_forward, tensor_backward;
  TimeSource source = TimeSource::formula;
  double optimizer = 0;           ///< published: seconds for a parameter
  double optimizer_constant = 0;  ///< seconds of a step without any

  double backward_block() const { return input_gradient.block + weight_gradient.block; }
  /// Published times do not say how a backward pass divides.
  bool weight_share_known() const { return source != TimeSource::published; }
};

/// The published profile of `gpu` for this model and tensor size, of the nearest micro-batch;
/// nullptr when it has none.
const Profile* find_profile(const GpuKind& gpu, const ModelShape& shape);

/// Times on `gpu`. Of find_profile(), proportional to the micro-batch; where there is none the sum
/// over kernels of the slower of computation and memory traffic, divided by the efficiency that the
/// GPU's measured profile has for each pass: between the nearest models that are no wider and no
/// narrower (by model, tensor size and options), of one tensor size, and of each between its two
/// nearest numbers of elements for each tensor rank; both logarithmically.
PassTimes pass_times(const GpuKind& gpu, const ModelShape& shape);

/// Seconds that the optimizer takes for `parameters` elements gradient norm included: measured,
/// else by formula.
double optimizer_time(const GpuKind& gpu, double parameters);

// The time of one training step of a layout on a cluster, and what it consists of.

/// Which node, of which kind, each rank of a layout is on.
class NodeMap {
 public:
  NodeMap(const Cluster& cluster, const NodeOrder& order);

  const Cluster& cluster() const { return cluster_; }
  std::int64_t gpus() const { return static_cast<std::int64_t>(node_.size()); }
  int node(std::int64_t rank) const { return node_.at(rank); }
  int kind(std::int64_t rank) const { return kind_.at(rank); }
  const NodeKind& of(std::int64_t rank) const { return cluster_.nodes[kind(rank)]; }
  /// Whether all nodes are of one kind.
  bool uniform() const { return uniform_; }
  /// Whether `count` ranks, first, first + stride, ..., are on one node.
  bool on_one_node(std::int64_t first, std::int64_t stride, std::int64_t count) const;

  /// Bytes/s of a group of `count` ranks: first, first + stride, ... As many groups as
  /// `groups_per_node` share the network of a node. The slowest link counts; 0 where it is not
  /// known. Sets `latency`.
  double bandwidth(std::int64_t first, std::int64_t stride, std::int64_t count,
                   std::int64_t groups_per_node, double& latency) const;

 private:
  const Cluster& cluster_;
  std::vector<int> node_;
  std::vector<int> kind_;
  bool uniform_ = true;
};

/// Seconds of a step by what the critical stage does with them; they sum to `total`.
struct StepTime {
  double total = 0;
  double compute = 0;    ///< passes without recomputation
  double recompute = 0;  ///< forward passes of the backward pass
  double tensor = 0;     ///< collectives of tensor ranks
  double messages = 0;   ///< idle time that messages between stages add
  double bubble = 0;     ///< idle time of the stage
  double data = 0;       ///< exposed reductions and gathers over data ranks
  double embedding = 0;  ///< reduction of the tied embedding over the first and the last stage
  double optimizer = 0;

  double pipeline() const { return compute + recompute + tensor + messages + bubble; }
};

/// Seconds of an all-reduce of `bytes` over `ranks`, as a ring; its halves take half of it.
double all_reduce(double bytes, double ranks, double bandwidth, double latency);

/// A layout to be timed. The partition is an argument; of the deck, `recompute`, `parallel.zero`
/// and `parallel.overlap` may change afterwards.
class LayoutTimes {
 public:
  /// `shape` is that of `deck`, whose parallel.data must be resolved; `nodes` has as many GPUs as
  /// the layout has ranks, or more. Both must outlive this.
  LayoutTimes(const deck::Deck& deck, const ModelShape& shape, const NodeMap& nodes);

  /// Costs of `layers` blocks on `stage`, which has chunk number `chunk` of `chunks`.
  pipeline::StepCosts chunk_costs(int stage, int chunk, std::int64_t layers) const;

  /// The time of a step with this partition, by the simulator and the rule of the executor. The
  /// time of messages is part of the bubble unless `messages`, which simulates twice.
  StepTime step_time(const std::vector<std::int64_t>& partition, bool messages = true) const;
  /// The pipeline's time alone.
  double makespan(const std::vector<std::int64_t>& partition) const;

  /// A time that no partition comes below, and the part of it that follows the pipeline.
  double lower_bound() const;
  double after_pipeline() const;
  bool one_f_one_b() const;

  /// Whether a kind of GPU among the ranks has no peak for the type, or a profile for this model at
  /// other tensor sizes only; and whether a backward pass may be divided.
  bool computable() const { return computable_; }
  bool divides_backward() const { return divides_backward_; }

  int stages() const { return stages_; }
  int micro_batches() const { return micro_batches_; }
  /// Both passes of a block, and of the embedding or the head, on `stage`.
  double block_time(int stage) const;
  double edge_time(int stage) const;
  /// A message to the next stage.
  double transfer(int stage) const { return stage_[stage].transfer; }

 private:
  struct Stage {
    std::vector<const PassTimes*> kinds;          ///< of its ranks' GPUs, each once
    UnitSeconds tensor_forward, tensor_backward;  ///< collectives of its tensor ranks
    double tensor_output = 0;  ///< of tensor_forward.block: what recomputation may leave out
    double transfer = 0;       ///< of a message to the next stage
    double link = 0;           ///< bytes/s between data ranks; 0: unknown
    const MeasuredGpu* collectives = nullptr;  ///< measured, of data ranks inside a node
    bool data_inside = false;                  ///< its data ranks are on one node
    double latency = 0;
    double optimizer = 0;  ///< seconds for an element
  };

  std::int64_t ranks_of_stage() const { return deck_.parallel.tensor * *deck_.parallel.data; }
  /// The passes of each kind of node that has some of `ranks`, and what follows from them.
  void set_passes(const NodeMap& nodes, std::int64_t ranks);
  Stage make_stage(const NodeMap& nodes, int index) const;
  /// Seconds in which the first and the last stage sum the gradient of their tied embedding.
  double embedding_time(const NodeMap& nodes) const;
  /// From one rank of a stage to the next whose links are looked at: on equal nodes the first and
  /// the last see every kind of link.
  std::int64_t rank_step(const NodeMap& nodes) const;
  std::vector<pipeline::StepCosts> costs(const std::vector<std::int64_t>& partition) const;
  /// Share of the blocks whose forward pass the backward pass repeats.
  double recomputed() const;
  /// Share of these whose output a recomputed block reads: in groups of N blocks all but the last.
  double recomputed_outputs() const;
  /// Seconds that recomputation adds to the backward pass of a block.
  double recompute_time(const PassTimes& times) const;
  /// Whether GEMMs on `gpu` take the parts of an all-gather as they come.
  bool takes_row_parts(const GpuKind& gpu) const;
  /// Sets the collectives of tensor ranks, of which an all-reduce takes `all_reduce` seconds.
  void set_collectives(Stage& stage, double all_reduce, bool by_parts) const;
  /// Seconds of the tensor ranks' collectives that recomputation repeats, of a block.
  double recomputed_collectives(const Stage& stage) const;
  /// When each stage ends, by the simulator.
  std::vector<double> ends(const std::vector<pipeline::StepCosts>& costs) const;
  double parameters(int stage, std::int64_t layers) const;
  double exposed_data(int stage, std::int64_t layers, const pipeline::StepCosts& last) const;

  const deck::Deck& deck_;
  ModelShape shape_;
  int stages_;
  int chunks_;
  int micro_batches_;
  std::vector<PassTimes> passes_;  ///< by kind of node
  std::vector<Stage> stage_;
  double embedding_seconds_ = 0;
  double optimizer_constant_ = 0;
  bool computable_ = true;
  bool divides_backward_ = true;
  /// Made when they are first needed.
  mutable std::vector<pipeline::StageSchedule> schedules_;
  mutable int scheduled_micro_batches_ = 0;
  /// The costs of the last simulation, and its result.
  mutable std::vector<pipeline::StepCosts> simulated_;
  mutable std::vector<double> simulated_ends_;
};

}  // namespace trireme::plan
