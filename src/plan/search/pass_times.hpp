// Time of the passes of a model's parts on a kind of GPU, from a measured profile or by formula.
#pragma once

#include <optional>

#include "deck/deck.hpp"
#include "plan/search/cluster.hpp"

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
  /// Attention scores in memory, as before FlashAttention: of other programs.
  bool unfused_attention = false;
};

/// The shape of `deck`'s model and of one of its micro-batches.
ModelShape model_shape(const deck::Deck& deck, std::int64_t vocab);

/// Seconds of one micro-batch's passes, on one tensor rank, without communication unless measured.
struct PassTimes {
  UnitSeconds forward;
  UnitSeconds input_gradient;
  UnitSeconds weight_gradient;
  bool measured = false;           ///< by a profile: tensor communication is in the times
  double optimizer = 0;            ///< measured: seconds for a parameter
  bool weight_share_known = true;  ///< whether the split of backward passes is

  double backward_block() const { return input_gradient.block + weight_gradient.block; }
};

/// The profile of `gpu` for this model and tensor size, of the nearest micro-batch; nullptr when it
/// has none.
const Profile* find_profile(const GpuKind& gpu, const ModelShape& shape);

/// Times on `gpu`: of find_profile(), proportional to the micro-batch; where there is none the sum
/// over kernels of the slower of computation and memory traffic.
PassTimes pass_times(const GpuKind& gpu, const ModelShape& shape);

/// Seconds that the optimizer takes for `parameters` elements by formula, gradient norm included.
double optimizer_time(const GpuKind& gpu, double parameters);

}  // namespace trireme::plan
