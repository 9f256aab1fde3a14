// Time of the passes of a model's parts on a kind of GPU, from a measured profile or by formula.
#pragma once

#include <optional>

#include "deck/deck.hpp"
#include "plan/cluster/cluster.hpp"

namespace trireme::plan {

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
/// GPU's measured profile has for each pass: of the profile whose model, tensor size and options
/// are nearest, between its two nearest numbers of tokens (logarithmically).
PassTimes pass_times(const GpuKind& gpu, const ModelShape& shape);

/// Seconds that the optimizer takes for `parameters` elements gradient norm included: measured,
/// else by formula.
double optimizer_time(const GpuKind& gpu, double parameters);

}  // namespace trireme::plan
