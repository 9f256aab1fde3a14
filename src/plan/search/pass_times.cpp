#include "plan/search/pass_times.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "grid/layout.hpp"

namespace trireme::plan {
namespace {

// Share of the memory bandwidth that kernels reach: layer norms, GELU and bias gradients of 1600
// columns on an H200 (apps/bench/README.md).
constexpr double kMemoryShare = 0.8;
// AdamW reads gradient, master weight and moments in fp32, and writes three of them and a 16-bit
// weight; the norm reads the gradient once more.
constexpr double kOptimizerBytes = 30, kNormBytes = 4;

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
    const double tiles = std::ceil(m / 128) * std::ceil(n / 128);
    const double sms = static_cast<double>(gpu_.sms);
    // A GEMM with fewer tiles than SMs splits long sums.
    const double filled = tiles < sms ? std::min(1.0, tiles * std::clamp(k / 512, 1.0, 4.0) / sms)
                                      : tiles / (std::ceil(tiles / sms) * sms);
    const double rate = peak_ * gpu_.gemm * k / (k + gpu_.gemm_half) * filled;
    const double traffic = bytes_ * (m * n + m * k + n * k) / bandwidth_;
    return std::max(2 * m * n * k / rate, traffic) + gpu_.launch;
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
  const double h = static_cast<double>(shape.hidden) / static_cast<double>(shape.tensor);
  const double s = static_cast<double>(shape.sequence);
  const double n = s * static_cast<double>(shape.micro);
  const double head = static_cast<double>(shape.hidden) / static_cast<double>(shape.heads);
  if (!shape.unfused_attention) {
    const double flops = 2 * n * s * h;  // two GEMMs, half of each masked
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

}  // namespace

ModelShape model_shape(const deck::Deck& deck, std::int64_t vocab) {
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
          .dropout = deck.model.dropout.hidden > 0 || deck.model.dropout.attention > 0};
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
  PassTimes times;
  if (const Profile* profile = find_profile(gpu, shape)) {
    const double scale = static_cast<double>(shape.micro) / static_cast<double>(profile->micro);
    const auto scaled = [&](double factor) {
      return UnitSeconds{profile->forward.embedding * scale * factor,
                         profile->forward.block * scale * factor,
                         profile->forward.head * scale * factor};
    };
    times.forward = scaled(1);
    times.input_gradient = times.weight_gradient = scaled(profile->backward / 2);
    times.measured = true;
    times.optimizer = profile->optimizer;
    times.weight_share_known = false;
    return times;
  }
  const Kernels kernels(gpu, shape);
  const double tensor = static_cast<double>(shape.tensor);
  const double h = static_cast<double>(shape.hidden), f = static_cast<double>(shape.ffn) / tensor;
  const double a = h / tensor;  // width of this rank's heads
  const double n = static_cast<double>(shape.sequence * shape.micro);
  // Positions whose norms, dropout and residual sums this rank computes.
  const double own = shape.sequence_parallel ? n / tensor : n;
  const AttentionTimes attention = attention_times(kernels, gpu, shape);
  const double dropout = shape.dropout ? 1 : 0;
  times.forward.block = kernels.gemm(n, 3 * a, h) + attention.forward + kernels.gemm(n, h, a) +
                        kernels.gemm(n, f, h) + kernels.gemm(n, h, f) +
                        // Twice bias, residual sum and norm; GELU's second output.
                        2 * kernels.stream((4 + dropout) * own * h) + kernels.stream(n * f);
  times.input_gradient.block = kernels.gemm(n, h, 3 * a) + attention.backward +
                               kernels.gemm(n, a, h) + kernels.gemm(n, h, f) +
                               kernels.gemm(n, f, h) + 2 * kernels.stream((5 + dropout) * own * h) +
                               kernels.stream(3 * n * f);
  times.weight_gradient.block = kernels.gemm(h, 3 * a, n) + kernels.gemm(h, a, n) +
                                2 * kernels.gemm(h, f, n) + kernels.stream(n * (3 * a + f + 2 * h));
  const double v = static_cast<double>(
      grid::padded_shard(shape.vocab, static_cast<int>(shape.tensor), 0).padded);
  times.forward.head =
      kernels.gemm(n, v, h) + kernels.stream(2 * n * v) + kernels.stream(2 * n * h);
  times.input_gradient.head = kernels.gemm(n, h, v) + kernels.stream(3 * n * h);
  times.weight_gradient.head = kernels.gemm(v, h, n);
  times.forward.embedding = kernels.stream((3 + dropout) * own * h);
  times.weight_gradient.embedding = kernels.stream((7 + dropout) * own * h);
  return times;
}

double optimizer_time(const GpuKind& gpu, double parameters) {
  return (kOptimizerBytes + kNormBytes) * parameters / (gpu.bandwidth * gpu.efficiency);
}

}  // namespace trireme::plan
