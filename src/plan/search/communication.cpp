// What ranks send each other in a step: over which links, for how long, and what GEMMs hide of it.
#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "plan/search/step_time.hpp"
#include "plan/setup.hpp"

namespace trireme::plan {
namespace {

// Share of a collective of tensor ranks beside a GEMM that takes time, since each slows the other:
// measured with copy engines on two H200s (apps/bench/README.md).
constexpr double kExposed = 0.5;
// GEMMs that take the parts of an all-gather as they come compute so many rows together, the tiles
// of a cluster of two blocks: parts have a multiple of them (kernels/cuda/gemm/hopper/tiles.hpp).
constexpr std::int64_t kTogetherRows = 256;
// GEMMs take parts of so many bytes as they come, between two ranks and between more
// (comm/peer/peer_exchange.cpp).
constexpr double kLeastPart = 1 << 20, kLeastPartOfMany = 4 << 20;

}  // namespace

double all_reduce(double bytes, double ranks, double bandwidth, double latency) {
  if (ranks <= 1 || bandwidth <= 0) return 0;
  return 2 * (ranks - 1) / ranks * bytes / bandwidth + latency;
}

NodeMap::NodeMap(const Cluster& cluster, const NodeOrder& order) : cluster_(cluster) {
  for (std::size_t node = 0; node < order.size(); ++node) {
    uniform_ &= order[node] == order[0];
    const std::int64_t gpus = cluster.nodes[order[node]].gpus;
    node_.insert(node_.end(), gpus, static_cast<int>(node));
    kind_.insert(kind_.end(), gpus, order[node]);
  }
}

bool NodeMap::on_one_node(std::int64_t first, std::int64_t stride, std::int64_t count) const {
  for (std::int64_t i = 1; i < count; ++i)
    if (node(first + i * stride) != node(first)) return false;
  return true;
}

double NodeMap::bandwidth(std::int64_t first, std::int64_t stride, std::int64_t count,
                          std::int64_t groups_per_node, double& latency) const {
  const bool inside = on_one_node(first, stride, count);
  latency = inside ? cluster_.link_latency : cluster_.network_latency;
  double slowest = 0;
  const auto take = [&](double value) {
    slowest = slowest == 0 ? value : std::min(slowest, value);
  };
  for (std::int64_t i = 0; i < (uniform_ ? 1 : count); ++i) {
    const NodeKind& kind = of(first + i * stride);
    if ((inside && !kind.link) || (!inside && !kind.network)) return 0;
    if (kind.link) take(*kind.link);
    if (!inside) take(*kind.network / static_cast<double>(std::min(groups_per_node, kind.gpus)));
  }
  return slowest;
}

bool LayoutTimes::takes_row_parts(const GpuKind& gpu) const {
  const std::int64_t part = shape_.micro * shape_.sequence / shape_.tensor;
  const double bytes = 2 * static_cast<double>(part * shape_.hidden);
  return shape_.sequence_parallel && gpu.gathers_under_gemms &&
         shape_.compute != deck::Compute::fp32 &&
         deck_.precision.gemm == deck::GemmPrecision::same && part % kTogetherRows == 0 &&
         bytes >= (shape_.tensor == 2 ? kLeastPart : kLeastPartOfMany);
}

// Of an all-reduce or, under sequence parallelism, of its halves: a block has two either way, one
// after attention and one after the MLP, and in the backward pass before them.
void LayoutTimes::set_collectives(Stage& stage, double all_reduce, bool by_parts) const {
  const double half = all_reduce / 2;
  stage.tensor_forward = stage.tensor_backward = {0, 0, all_reduce};
  stage.tensor_forward.embedding = all_reduce;
  // Weight gradients that a schedule has moved hide nothing, and gather what they need once more.
  const bool moved = deck_.parallel.schedule == deck::PipelineSchedule::zero_bubble;
  const double again = moved && shape_.sequence_parallel ? 2 * half : 0;
  if (!by_parts) {
    // Weight gradients hide a part of the all-reduces, or of the reduce-scatters alone: for the
    // all-gathers of gradients the GEMMs wait.
    const double waits = shape_.sequence_parallel && !shape_.overlaps_gathers ? 0.5 : 0;
    stage.tensor_forward.block = 2 * all_reduce;
    stage.tensor_backward.block =
        2 * all_reduce * (waits + (1 - waits) * (moved ? 1 : kExposed)) + again;
    stage.tensor_output = shape_.sequence_parallel ? half : all_reduce;
    return;
  }
  // A GEMM of `seconds` has `share` of its work to do meanwhile.
  const auto beside = [&](double seconds, double share) {
    const double hidden = std::min(half, share * seconds);
    return half - hidden + kExposed * hidden;
  };
  const PassTimes& times = *stage.kinds.front();
  // All but the rows of its own rank may have to be waited for.
  const double others = 1 - 1 / static_cast<double>(shape_.tensor);
  // Both reduce-scatters are waited for.
  stage.tensor_forward.block = 2 * half + beside(times.qkv, others) + beside(times.fc1, others);
  // The gather before fc2's gradient, and that before the projection's, which is waited for; the
  // reduce-scatters of fc1's and qkv's gradients run beside weight gradients.
  stage.tensor_backward.block = beside(times.fc1, others) + half + beside(times.fc1, !moved) +
                                beside(times.qkv, !moved) + again;
  stage.tensor_output = half;
}

double LayoutTimes::recomputed_collectives(const Stage& stage) const {
  const double block = stage.tensor_forward.block;
  if (shape_.reads_output || shape_.unfused_attention) return recomputed() * block;
  return recomputed() * (block - (1 - recomputed_outputs()) * stage.tensor_output);
}

double LayoutTimes::exposed_data(int stage, std::int64_t layers,
                                 const pipeline::StepCosts& last) const {
  const double ranks = static_cast<double>(*deck_.parallel.data);
  const Stage& own = stage_[stage];
  if (ranks <= 1 || own.link <= 0) return 0;
  const double count = parameters(stage, layers);
  const double weight = shape_.compute == deck::Compute::fp32 ? 4 : 2;
  const double gradient = deck_.precision.gradients == deck::GradientPrecision::same ? weight : 4;
  const double buckets = static_cast<double>(layers) + 1;
  // Half of an all-reduce each; a collective for each layer, at least.
  const auto collective = [&](const char* operation, double bytes) {
    if (own.collectives)
      if (const auto measured = own.collectives->collective(operation, ranks, bytes / buckets))
        return buckets * *measured;
    return all_reduce(bytes, ranks, own.link, 0) / 2 + own.latency * buckets;
  };
  const double reduce = collective("reduce-scatter", gradient * count);
  const double gather = collective("all-gather", weight * count);
  // NCCL's blocks hold SMs for as long as a collective takes, and GEMMs occupy all of them: inside
  // a node, where links are fast, overlapping gains nothing (apps/bench/README.md, what was tried).
  const auto behind = [&](double seconds, bool overlap, double window) {
    return overlap && !own.data_inside ? std::max(seconds - window, seconds / buckets) : seconds;
  };
  const bool gradients = deck_.parallel.overlap.gradients;
  const bool weights = deck_.parallel.overlap.parameters;
  using model::ZeroStage;
  switch (store_options(deck_).zero) {
    case ZeroStage::none:
      return behind(2 * reduce, gradients, last.backward);
    case ZeroStage::optimizer_state:
      return behind(reduce, gradients, last.backward) + behind(gather, weights, last.forward);
    case ZeroStage::gradients:
      return micro_batches_ * behind(reduce, gradients, last.backward) +
             behind(gather, weights, last.forward);
    case ZeroStage::weights:
      return micro_batches_ * (behind(reduce + gather, gradients && weights, last.backward) +
                               behind(gather, weights, last.forward));
  }
  throw InternalError("unknown parallel.zero = {}", deck_.parallel.zero);
}

}  // namespace trireme::plan
