#include "plan/search/step_time.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>

#include "grid/layout.hpp"
#include "plan/setup.hpp"

namespace trireme::plan {
namespace {

// Share of the memory bandwidth that kernels reach: layer norms, GELU and bias gradients of 1600
// columns on an H200 (apps/bench/README.md).
constexpr double kMemoryShare = 0.8;
// AdamW reads gradient, master weight and moments in fp32, and writes three of them and a 16-bit
// weight; the norm reads the gradient once more.
constexpr double kOptimizerBytes = 30, kNormBytes = 4;
// Rows and columns of the results that a block of a GEMM computes.
constexpr double kTile = 128;
// Norms that selective recomputation repeats, as a share of a block's forward pass.
constexpr double kNormShare = 0.06;

/// The kernels of one GPU.
class Kernels {
 public:
  Kernels(const GpuKind& gpu, const ModelShape& shape)
      : gpu_(gpu),
        peak_(gpu.peak_of(shape.compute) * gpu.efficiency),
        bandwidth_(gpu.bandwidth * kMemoryShare * gpu.efficiency),
        bytes_(shape.compute == deck::Compute::fp32 ? 4 : 2) {}

  /// m x n results of sums over k.
  double gemm(double m, double n, double k) const {
    const double tiles = std::ceil(m / kTile) * std::ceil(n / kTile);
    const double sms = static_cast<double>(gpu_.sms);
    // A GEMM with fewer tiles than SMs splits long sums.
    const double filled = tiles < sms ? std::min(1.0, tiles * std::clamp(k / 512, 1.0, 4.0) / sms)
                                      : tiles / (std::ceil(tiles / sms) * sms);
    const double rate = peak_ * gpu_.gemm * k / (k + gpu_.gemm_half) * filled;
    const double traffic = bytes_ * (m * n + m * k + n * k) / bandwidth_;
    // A tile that reaches over the edge of the results takes as long as the others.
    return std::max(2 * tiles * kTile * kTile * k / rate, traffic) + gpu_.launch;
  }
  /// A kernel that moves `elements`.
  double stream(double elements) const { return bytes_ * elements / bandwidth_ + gpu_.launch; }
  /// Fused attention: `flops` of heads of `head`; `share` is attention_forward or _backward.
  double attention(double flops, double head, double share) const {
    return flops / (peak_ * share * head / (head + 192)) + gpu_.launch;
  }

 private:
  const GpuKind& gpu_;
  double peak_;
  double bandwidth_;
  double bytes_;
};

/// Attention of a block.
struct AttentionTimes {
  double forward = 0;
  double backward = 0;
};

AttentionTimes attention_times(const Kernels& kernels, const GpuKind& gpu,
                               const ModelShape& shape) {
  const double h =
      shape.head_share * static_cast<double>(shape.hidden) / static_cast<double>(shape.tensor);
  const double s = static_cast<double>(shape.sequence);
  const double n = s * static_cast<double>(shape.micro);
  const double head =
      shape.head_share * static_cast<double>(shape.hidden) / static_cast<double>(shape.heads);
  if (!shape.unfused_attention) {
    const double flops = (shape.causal ? 2 : 4) * n * s * h;  // two GEMMs, half of each masked
    return {kernels.attention(flops, head, gpu.attention_forward),
            kernels.attention(2.5 * flops, head, gpu.attention_backward)};
  }
  // Scores, softmax, dropout and their gradients go through memory, whole.
  const double batches =
      static_cast<double>(shape.micro * shape.heads) / static_cast<double>(shape.tensor);
  const double scores = batches * s * s;
  // One kernel for all heads of a batch.
  const double wide = kernels.gemm(batches * s, s, head), deep = kernels.gemm(batches * s, head, s);
  const double dropout = shape.dropout ? 2.5 : 0;
  return {wide + deep + kernels.stream((3 + dropout) * scores),
          2 * (wide + deep) + kernels.stream((4 + dropout) * scores)};
}

/// The times of kernels: each the slower of computation and memory traffic.
PassTimes calculated(const GpuKind& gpu, const ModelShape& shape) {
  PassTimes times;
  const Kernels kernels(gpu, shape);
  const double tensor = static_cast<double>(shape.tensor);
  const double h = static_cast<double>(shape.hidden), f = static_cast<double>(shape.ffn) / tensor;
  const double a = shape.head_share * h / tensor;  // width of this rank's query heads
  const double qkv = a * (1 + 2 * shape.kv_share);
  const double fc1 = shape.gated ? 2 * f : f;
  const double n = static_cast<double>(shape.sequence * shape.micro);
  // Positions whose norms, dropout and residual sums this rank computes.
  const double own = shape.sequence_parallel ? n / tensor : n;
  const AttentionTimes attention = attention_times(kernels, gpu, shape);
  const double dropout = shape.dropout ? 1 : 0;
  const double rotation =
      shape.rotary ? kernels.stream(2 * n * a * (1 + shape.kv_share)) : 0;  // of queries and keys
  times.qkv = kernels.gemm(n, qkv, h);
  times.fc1 = kernels.gemm(n, fc1, h);
  times.forward.block = times.qkv + rotation + attention.forward + kernels.gemm(n, h, a) +
                        times.fc1 + kernels.gemm(n, h, f) +
                        // Twice bias, residual sum and norm; GELU's second output, or the gate's
                        // two inputs and its output.
                        2 * kernels.stream((4 + dropout) * own * h) +
                        kernels.stream((shape.gated ? 3 : 1) * n * f);
  times.input_gradient.block = kernels.gemm(n, h, qkv) + rotation + attention.backward +
                               kernels.gemm(n, a, h) + kernels.gemm(n, h, fc1) +
                               kernels.gemm(n, f, h) + 2 * kernels.stream((5 + dropout) * own * h) +
                               kernels.stream((shape.gated ? 5 : 3) * n * f);
  times.weight_gradient.block = kernels.gemm(h, qkv, n) + kernels.gemm(h, a, n) +
                                kernels.gemm(h, fc1, n) + kernels.gemm(h, f, n);
  if (shape.biases) times.weight_gradient.block += kernels.stream(n * (qkv + f + 2 * h));
  const double v = static_cast<double>(
      grid::padded_shard(shape.vocab, static_cast<int>(shape.tensor), 0).padded);
  times.forward.head =
      kernels.gemm(n, v, h) + kernels.stream(2 * n * v) + kernels.stream(2 * n * h);
  // Schedules that move weight gradients leave those of the embedding and the head in place.
  times.input_gradient.head =
      kernels.gemm(n, h, v) + kernels.stream(3 * n * h) + kernels.gemm(v, h, n);
  times.forward.embedding = kernels.stream((3 + dropout) * own * h);
  times.input_gradient.embedding = kernels.stream((7 + dropout) * own * h);
  // Megatron-LM and its like repeat the whole forward pass.
  if (!shape.reads_output && !shape.unfused_attention)
    times.recompute_output = kernels.gemm(n, h, f) + kernels.stream((2 + dropout) * own * h);
  times.recompute_full = times.forward.block - times.recompute_output;
  // Programs without fused attention recompute attention.
  times.recompute_selective =
      shape.unfused_attention ? attention.forward : kNormShare * times.forward.block;
  return times;
}

/// `published` times for micro-batches of `micro`.
PassTimes of_published(const Profile& published, std::int64_t micro) {
  const double scale = static_cast<double>(micro) / static_cast<double>(published.micro);
  const auto scaled = [&](double factor) {
    return UnitSeconds{published.forward.embedding * scale * factor,
                       published.forward.block * scale * factor,
                       published.forward.head * scale * factor};
  };
  PassTimes times{.forward = scaled(1),
                  .input_gradient = scaled(published.backward / 2),
                  .weight_gradient = scaled(published.backward / 2),
                  .source = TimeSource::published,
                  .optimizer = published.optimizer};
  times.recompute_full = times.forward.block;
  times.recompute_selective = kNormShare * times.forward.block;
  return times;
}

double log_ratio(std::int64_t a, std::int64_t b) {
  return std::abs(std::log(static_cast<double>(a) / static_cast<double>(b)));
}

/// How far the passes of a measured profile are from those of `shape`, the tokens left out.
double distance(const Profile& profile, const ModelShape& shape) {
  const MeasuredPasses& own = *profile.own;
  return log_ratio(profile.hidden, shape.hidden) + log_ratio(profile.sequence, shape.sequence) +
         log_ratio(own.ffn * shape.hidden, profile.hidden * shape.ffn) +
         0.2 * log_ratio(profile.heads * shape.hidden, profile.hidden * shape.heads) +
         0.1 * log_ratio(own.vocab, shape.vocab) + log_ratio(profile.tensor, shape.tensor) +
         (own.dropout != shape.dropout) + 0.1 * (own.sequence_parallel != shape.sequence_parallel) +
         0.05 * (own.compute != shape.compute);
}

/// Elements of a micro-batch's residual stream for each tensor rank: how many tiles the GEMMs of a
/// pass have, and so how far they fill the GPU, is proportional to it.
template <typename Passes>
double elements_of(const Passes& passes) {
  return static_cast<double>(passes.micro * passes.sequence * passes.hidden) /
         static_cast<double>(passes.tensor);
}

/// Whether both are types of 16 bits, whose kernels are the same, or both are fp32.
bool same_width(deck::Compute a, deck::Compute b) {
  return (a == deck::Compute::fp32) == (b == deck::Compute::fp32);
}

ModelShape shape_of(const Profile& profile, const ModelShape& like) {
  ModelShape shape = like;
  shape.hidden = profile.hidden;
  shape.ffn = profile.own->ffn;
  shape.heads = profile.heads;
  shape.sequence = profile.sequence;
  shape.vocab = profile.own->vocab;
  shape.tensor = profile.tensor;
  shape.micro = profile.micro;
  shape.compute = profile.own->compute;
  shape.sequence_parallel = profile.own->sequence_parallel;
  shape.dropout = profile.own->dropout;
  return shape;
}

/// Calls work(a, b, c) for each part of a model of the three.
template <typename Work>
void for_parts(UnitSeconds& a, const UnitSeconds& b, const UnitSeconds& c, const Work& work) {
  work(a.embedding, b.embedding, c.embedding);
  work(a.block, b.block, c.block);
  work(a.head, b.head, c.head);
}

/// `times` of `shape` as `profile` measured them: each multiplied by its measured time over the
/// calculated one.
PassTimes scaled_to(const Profile& profile, const GpuKind& gpu, const ModelShape& shape,
                    PassTimes times) {
  const MeasuredPasses& own = *profile.own;
  const PassTimes base = calculated(gpu, shape_of(profile, shape));
  const auto scale = [](double& value, double measured, double calculated) {
    value *= calculated > 0 ? measured / calculated : 0;
  };
  for_parts(times.forward, profile.forward, base.forward, scale);
  scale(times.qkv, profile.forward.block, base.forward.block);
  scale(times.fc1, profile.forward.block, base.forward.block);
  const double weights =
      times.weight_gradient.block * own.weight_gradient.block / base.weight_gradient.block;
  UnitSeconds backward = times.input_gradient, base_backward = base.input_gradient;
  backward.block += times.weight_gradient.block;
  base_backward.block += base.weight_gradient.block;
  for_parts(backward, own.backward, base_backward, scale);
  times.weight_gradient.block = std::min(weights, backward.block);
  times.input_gradient = backward;
  times.input_gradient.block -= times.weight_gradient.block;
  scale(times.recompute_full, own.recompute_full, base.recompute_full);
  scale(times.recompute_output, profile.forward.block, base.forward.block);
  scale(times.recompute_selective, own.recompute_selective, base.recompute_selective);
  // Collectives are proportional to the residual stream, of the same number of ranks.
  const double bytes = static_cast<double>(shape.micro * shape.sequence * shape.hidden) /
                       static_cast<double>(profile.micro * profile.sequence * profile.hidden);
  if (profile.tensor == shape.tensor && own.tensor_forward && own.tensor_backward &&
      own.sequence_parallel == shape.sequence_parallel) {
    const auto resized = [&](const UnitSeconds& units) {
      return UnitSeconds{bytes * units.embedding, bytes * units.block, bytes * units.head};
    };
    times.tensor_forward = resized(*own.tensor_forward);
    times.tensor_backward = resized(*own.tensor_backward);
  }
  times.source = TimeSource::profile;
  return times;
}

/// `a` and `b`, of which `share` is b's.
PassTimes mixed(PassTimes a, const PassTimes& b, double share) {
  const auto mix = [&](double& value, double other) { value += share * (other - value); };
  const auto mix_units = [&](UnitSeconds& units, const UnitSeconds& other) {
    mix(units.embedding, other.embedding);
    mix(units.block, other.block);
    mix(units.head, other.head);
  };
  mix_units(a.forward, b.forward);
  mix_units(a.input_gradient, b.input_gradient);
  mix_units(a.weight_gradient, b.weight_gradient);
  mix(a.qkv, b.qkv);
  mix(a.fc1, b.fc1);
  mix(a.recompute_full, b.recompute_full);
  mix(a.recompute_output, b.recompute_output);
  mix(a.recompute_selective, b.recompute_selective);
  if (!a.tensor_forward || !b.tensor_forward) {
    if (!a.tensor_forward) a.tensor_forward = b.tensor_forward;
    if (!a.tensor_backward) a.tensor_backward = b.tensor_backward;
    return a;
  }
  mix_units(*a.tensor_forward, *b.tensor_forward);
  mix_units(*a.tensor_backward, *b.tensor_backward);
  return a;
}

/// Profiles to interpolate between: of no more of something, and of no less. Either may be null.
using ProfilePair = std::pair<const Profile*, const Profile*>;

/// The nearest of the `admitted` profiles with no more elements_of() than `shape`, and with no
/// fewer; both null where none of this family and width of numbers is admitted.
template <typename Admitted>
ProfilePair nearest_profiles(const MeasuredGpu& measured, const ModelShape& shape,
                             const Admitted& admitted) {
  double nearest = std::numeric_limits<double>::infinity();
  const auto usable = [&](const Profile& profile) {
    return profile.own && profile.own->family == shape.family &&
           same_width(profile.own->compute, shape.compute) && admitted(profile);
  };
  for (const Profile& profile : measured.profiles)
    if (usable(profile)) nearest = std::min(nearest, distance(profile, shape));
  const Profile *below = nullptr, *above = nullptr;
  const double elements = elements_of(shape);
  for (const Profile& profile : measured.profiles) {
    if (!usable(profile) || distance(profile, shape) > nearest + 1e-9) continue;
    const double own = elements_of(profile);
    if (own <= elements && (!below || own > elements_of(*below))) below = &profile;
    if (own >= elements && (!above || own < elements_of(*above))) above = &profile;
  }
  return {below, above};
}

/// `times` of a shape as the model of `profile` was measured.
struct ModelTimes {
  const Profile* profile;
  PassTimes times;
};

/// By nearest_profiles(), between the elements_of() of the two.
std::optional<ModelTimes> between_elements(const GpuKind& gpu, const ModelShape& shape,
                                           const PassTimes& times, ProfilePair profiles) {
  const auto [below, above] = profiles;
  if (!below && !above) return std::nullopt;
  const Profile& first = below ? *below : *above;
  ModelTimes result{&first, scaled_to(first, gpu, shape, times)};
  if (below && above && elements_of(*below) < elements_of(*above)) {
    const double share = std::log(elements_of(shape) / elements_of(*below)) /
                         std::log(elements_of(*above) / elements_of(*below));
    result.times = mixed(result.times, scaled_to(*above, gpu, shape, times), share);
  }
  return result;
}

/// Between the nearest models that are no wider than `shape` and no narrower, where both were
/// measured for one tensor size; else of the nearer one.
std::optional<PassTimes> between_widths(const GpuKind& gpu, const ModelShape& shape,
                                        const PassTimes& times) {
  const auto of = [&](const auto& admitted) {
    const auto has_type = [&](const Profile& p) { return gpu.peak_of(p.own->compute) > 0; };
    return between_elements(gpu, shape, times,
                            nearest_profiles(*gpu.measured, shape, [&](const Profile& p) {
                              return has_type(p) && admitted(p);
                            }));
  };
  const auto narrower = of([&](const Profile& p) { return p.hidden <= shape.hidden; });
  const auto wider = of([&](const Profile& p) { return p.hidden >= shape.hidden; });
  if (!narrower && !wider) return std::nullopt;
  if (!narrower || !wider) return (narrower ? narrower : wider)->times;
  const Profile &low = *narrower->profile, &high = *wider->profile;
  if (low.hidden == high.hidden || low.tensor != high.tensor)
    return (distance(low, shape) <= distance(high, shape) ? narrower : wider)->times;
  return mixed(narrower->times, wider->times,
               log_ratio(shape.hidden, low.hidden) / log_ratio(high.hidden, low.hidden));
}

}  // namespace

ModelShape model_shape(const deck::Deck& deck, std::int64_t vocab) {
  const model::ModelSpec spec = model_spec(deck, {.size = vocab});
  const model::BlockSpec& block = spec.blocks.front();
  const model::AttentionSpec& attention = block.attention;
  return {.layers = deck.model.layers,
          .hidden = deck.model.hidden,
          .ffn = deck.model.ffn,
          .heads = deck.model.heads,
          .sequence = deck.model.sequence,
          .vocab = vocab,
          .tensor = deck.parallel.tensor,
          .micro = deck.batch.micro,
          .compute = deck.precision.compute,
          .sequence_parallel = deck.parallel.sequence,
          .dropout = deck.model.dropout.hidden > 0 || deck.model.dropout.attention > 0,
          .family = deck.model.family,
          .causal = attention.causal,
          .head_share = static_cast<double>(attention.heads * attention.head_dim) /
                        static_cast<double>(spec.hidden),
          .kv_share =
              static_cast<double>(attention.local_kv_heads(static_cast<int>(deck.parallel.tensor)) *
                                  deck.parallel.tensor) /
              static_cast<double>(attention.heads),
          .gated = deck.model.activation.has_value(),
          .rotary = attention.rotary,
          .biases = attention.output_bias,
          .reads_output = block.norm_placement != model::NormPlacement::pre};
}

const Profile* find_profile(const GpuKind& gpu, const ModelShape& shape) {
  const Profile* best = nullptr;
  const auto distance = [&](const Profile& profile) {
    return std::abs(
        std::log(static_cast<double>(profile.micro) / static_cast<double>(shape.micro)));
  };
  for (const Profile& profile : gpu.profiles) {
    const bool same = profile.hidden == shape.hidden && profile.heads == shape.heads &&
                      profile.sequence == shape.sequence && profile.tensor == shape.tensor &&
                      (profile.layers == 0 || profile.layers == shape.layers);
    if (same && (!best || distance(profile) < distance(*best))) best = &profile;
  }
  return best;
}

PassTimes pass_times(const GpuKind& gpu, const ModelShape& shape) {
  if (const Profile* profile = find_profile(gpu, shape)) return of_published(*profile, shape.micro);
  const PassTimes times = calculated(gpu, shape);
  if (!gpu.measured) return times;
  std::optional<PassTimes> measured = between_widths(gpu, shape, times);
  if (!measured) return times;
  measured->optimizer_constant = gpu.measured->optimizer_constant;
  return *measured;
}

double optimizer_time(const GpuKind& gpu, double parameters) {
  if (gpu.measured && gpu.measured->optimizer > 0) return gpu.measured->optimizer * parameters;
  return (kOptimizerBytes + kNormBytes) * parameters / (gpu.bandwidth * gpu.efficiency);
}

}  // namespace trireme::plan
