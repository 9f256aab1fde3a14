// A deck's sections `model`, `optimizer`, `schedule`, `precision` and `recompute`, and lengths of
// training. See deck.hpp.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "deck/choices.hpp"

namespace trireme::deck {

struct Dropout {
  double attention = 0;
  double hidden = 0;

  bool operator==(const Dropout&) const = default;
};

/// Keys that only model.family = bert has: set for bert, unset for another family.
struct BertModel {
  std::optional<bool> binary_head;
  std::optional<bool> post_norm;
  std::optional<bool> deep_init;

  bool operator==(const BertModel&) const = default;
};

/// Rotary positions, which only model.family = llama has. Those below `scaling` are set only with
/// one.
struct Position {
  std::optional<double> theta;
  std::optional<PositionScaling> scaling;
  std::optional<double> factor;
  std::optional<std::int64_t> original;  ///< tokens
  std::optional<double> low;
  std::optional<double> high;

  bool operator==(const Position&) const = default;
};

/// Maximal update parametrization: set only where `base` is.
struct Mup {
  std::optional<std::int64_t> base;       ///< the hidden width that rates were tuned at
  std::optional<std::int64_t> base_head;  ///< elements of a head there
  std::optional<double> embedding;        ///< factor of the token embedding's output

  bool operator==(const Mup&) const = default;
};

struct Model {
  Family family{};
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t ffn = 0;
  std::int64_t sequence = 0;
  std::int64_t positions = 0;
  std::optional<std::int64_t> vocab;  ///< unset: the tokenizer's
  Dropout dropout;
  InitScheme init{};
  double init_std = 0;
  std::optional<double> init_cutoff;  ///< standard deviations; unset: not truncated
  double layernorm_eps = 0;
  bool embedding_layernorm = false;
  bool tie_embeddings = false;
  double z_loss = 0;  ///< coefficient; 0: none
  Mup mup;
  BertModel bert;
  // Of model.family = llama alone: set for llama, unset for another family.
  std::optional<std::int64_t> kv_heads;
  std::optional<std::int64_t> head_dim;
  std::optional<GatedActivation> activation;
  std::optional<NormPlacement> norm_placement;
  std::optional<QkNorm> qk_norm;
  std::optional<LinearBias> bias;
  std::optional<std::int64_t> window;  ///< tokens; unset: attention to all earlier tokens
  Position position;

  /// Elements of an attention head; 0 without heads.
  std::int64_t head_size() const { return head_dim.value_or(heads > 0 ? hidden / heads : 0); }

  bool operator==(const Model&) const = default;
};

/// Shards of `heads` key and value heads on `tensor_ranks`: one for each rank, or, with more ranks
/// than heads, one for each head, of which ranks hold copies. 0 where neither number is a multiple
/// of the other: shards would divide a head, or ranks hold different numbers.
constexpr std::int64_t shards_of_kv_heads(std::int64_t heads, std::int64_t tensor_ranks) {
  const std::int64_t shards = heads < tensor_ranks ? heads : tensor_ranks;
  return heads % shards == 0 && tensor_ranks % shards == 0 ? shards : 0;
}

// The FLOPs of a GPT-2, by which speed is reported, also from the log of a run.

/// Floating-point operations per token of one training iteration of a GPT, forward and backward:
/// l (24 h^2 + 12 h f + 6 s h) + 6 V h for an MLP of `ffn` = f; with f = 4 h this is the published
/// 72 l h^2 (1 + s / (12 h) + V / (12 l h)). Causal attention counts half of s x s; recomputation
/// counts nothing. Source: Narayanan et al., "Efficient large-scale language model training on GPU
/// clusters" (SC 2021), its factor 96 without recomputation and its attention halved.
constexpr double gpt_flops_per_token(std::int64_t layers, std::int64_t hidden, std::int64_t ffn,
                                     std::int64_t sequence, std::int64_t vocab) {
  const double l = static_cast<double>(layers), h = static_cast<double>(hidden);
  const double f = static_cast<double>(ffn), s = static_cast<double>(sequence);
  const double v = static_cast<double>(vocab);
  return l * (24 * h * h + 12 * h * f + 6 * s * h) + 6 * v * h;
}

// ---- optimizer and schedule

/// What a Length counts. A fraction is of schedule.decay.
enum class Unit { iterations, samples, seconds, minutes, hours, fraction };

constexpr auto names_of(Unit) {
  return std::to_array<std::string_view>(
      {"iterations", "samples", "seconds", "minutes", "hours", "fraction"});
}

/// A number with its unit, such as `2000 iterations` or `90 minutes`. A bare number of the deck has
/// already got the unit that `train` counts in.
struct Length {
  double value = 0;
  Unit unit = Unit::iterations;

  bool operator==(const Length&) const = default;
};

/// Factors of a hyperparameter for each group of parameters.
struct GroupFactors {
  double embedding = 1;
  double matrices = 1;  ///< of layers
  double head = 1;
  double vectors = 1;  ///< biases and norms

  bool operator==(const GroupFactors&) const = default;
};

/// Set for optimizer.type muon alone.
struct Muon {
  std::optional<MuonScale> scale;
  std::optional<bool> nesterov;

  bool operator==(const Muon&) const = default;
};

struct Optimizer {
  OptimizerType type{};
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  std::optional<double> momentum;  ///< set for sgd and muon alone
  Muon muon;
  double weight_decay = 0;
  GroupFactors rate;   ///< of the learning rate
  GroupFactors decay;  ///< of the weight decay
  double clip = 0;     ///< 0: no clipping

  bool operator==(const Optimizer&) const = default;
};

struct WeightDecay {
  double end = 0;
  RampType type{};

  bool operator==(const WeightDecay&) const = default;
};

/// Set for schedule.type lr-range-test alone.
struct RangeTest {
  std::optional<Length> step;
  std::optional<double> rate;
  std::optional<bool> staircase;

  bool operator==(const RangeTest&) const = default;
};

/// Set only with schedule.type = wsd.
struct Wsd {
  std::optional<Length> decay;  ///< of the last part; a fraction is of schedule.decay
  std::optional<WsdShape> shape;

  bool operator==(const Wsd&) const = default;
};

struct Schedule {
  ScheduleType type{};
  ScheduleDialect dialect{};
  std::optional<double> peak;  ///< set but for a range test
  double minimum = 0;
  Length warmup;
  Length decay;
  WeightDecay weight_decay;
  RangeTest range_test;
  Wsd wsd;

  bool operator==(const Schedule&) const = default;
};

// ---- precision and recomputation

/// Those but `value` are set only where the scale is dynamic: see is_dynamic.
struct LossScale {
  std::optional<double> value;  ///< unset: `dynamic`
  std::optional<LossScaleDialect> dialect;
  std::optional<double> initial;
  std::optional<std::int64_t> window;
  std::optional<std::int64_t> hysteresis;
  std::optional<double> minimum;

  bool operator==(const LossScale&) const = default;
};

/// Set only where precision.gemm is fp8.
struct Fp8 {
  std::optional<Fp8Recipe> recipe;
  std::optional<Fp8Type> forward;
  std::optional<Fp8Type> backward;
  std::optional<std::int64_t> first_layers;  ///< that stay in precision.compute
  std::optional<std::int64_t> last_layers;

  bool operator==(const Fp8&) const = default;
};

struct Precision {
  Compute compute{};
  EmbeddingPrecision embedding{};
  GemmPrecision gemm{};
  Fp8 fp8;
  GradientPrecision gradients{};
  LossScale loss_scale;

  /// Whether embeddings are looked up in the fp32 master weights of 16-bit ones.
  bool looks_up_master_weights() const {
    return embedding == EmbeddingPrecision::fp32 && compute != Compute::fp32;
  }

  bool operator==(const Precision&) const = default;
};

struct Recompute {
  Granularity granularity{};
  std::optional<RecomputeMethod> method;  ///< set for full alone, as is `layers`
  std::optional<std::int64_t> layers;
  bool partition = false;
  bool offload = false;
  bool contiguous = false;

  bool operator==(const Recompute&) const = default;
};

}  // namespace trireme::deck
