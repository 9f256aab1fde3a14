// Communication in a step: over which links, for how long, and how much of it GEMMs overlap.
#include <algorithm>
#include <cmath>

#include "comm/communicator.hpp"
#include "core/error.hpp"
#include "core/tensor.hpp"
#include "plan/search/step_time.hpp"
#include "plan/setup.hpp"

namespace trireme::plan {
namespace {

// Share of a collective overlapped with a GEMM that adds to the step all the same, since each slows
// the other: measured with copy engines on two H200s (apps/bench/README.md).
constexpr double kExposed = 0.5;

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
  const std::int64_t bytes = 2 * part * shape_.hidden;
  return shape_.sequence_parallel && gpu.gathers_under_gemms &&
         shape_.compute != deck::Compute::fp32 &&
         deck_.precision.gemm == deck::GemmPrecision::same && part % kPartRowMultiple == 0 &&
         bytes >= static_cast<std::int64_t>(comm::min_gather_bytes(shape_.tensor));
}

// A block has two all-reduces in its forward pass, after attention and after the MLP, and two in
// its backward pass; under sequence parallelism each is a reduce-scatter and an all-gather.
void LayoutTimes::set_collectives(Stage& stage, double all_reduce, bool by_parts) const {
  const double half = all_reduce / 2;
  stage.tensor_forward = stage.tensor_backward = {0, 0, all_reduce};
  stage.tensor_forward.embedding = all_reduce;
  // Deferred weight gradients overlap with no collective, and all-gather the gradients of
  // row-parallel linears once more.
  const bool deferred = deck_.parallel.schedule == deck::PipelineSchedule::zero_bubble;
  const double regathered = deferred && shape_.sequence_parallel ? 2 * half : 0;
  if (!by_parts) {
    // Weight gradients overlap with the all-reduces, or with the reduce-scatters alone: GEMMs wait
    // for the all-gathers of gradients.
    const double waits = shape_.sequence_parallel && !shape_.overlaps_gathers ? 0.5 : 0;
    stage.tensor_forward.block = 2 * all_reduce;
    stage.tensor_backward.block =
        2 * all_reduce * (waits + (1 - waits) * (deferred ? 1 : kExposed)) + regathered;
    stage.tensor_output = shape_.sequence_parallel ? half : all_reduce;
    return;
  }
  // A half overlapped with `share` of a GEMM of `seconds`.
  const auto overlapped = [&](double seconds, double share) {
    const double together = std::min(half, share * seconds);
    return half - together + kExposed * together;
  };
  const PassTimes& times = *stage.kinds.front();
  // The share of a GEMM's rows that other ranks send.
  const double others = 1 - 1 / static_cast<double>(shape_.tensor);
  // Both reduce-scatters are exposed; the all-gathers overlap with the GEMMs that read them.
  stage.tensor_forward.block =
      2 * half + overlapped(times.qkv, others) + overlapped(times.fc1, others);
  // The all-gather before fc2's input gradient overlaps with it; the reduce-scatters of fc1's and
  // qkv's overlap with weight gradients. So does that before the projection's, with fc2's, but as
  // much as an exposed one is lost by clocks that power lowers: steps of 1.5B on two H200s are
  // predicted 0.4 to 1.9 % too short as it is.
  stage.tensor_backward.block = overlapped(times.fc1, others) + half +
                                overlapped(times.fc1, !deferred) +
                                overlapped(times.qkv, !deferred) + regathered;
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
  using model::ZeroStage;
  const ZeroStage zero = store_options(deck_).zero;
  // Inside a node NCCL's blocks hold SMs for as long as a collective takes, and GEMMs occupy all of
  // them: overlapping gains nothing. Of what the copy engines do for shards half is hidden: GEMMs
  // lose the rest by clocks that power lowers (apps/bench/README.md, what was tried).
  const bool by_copies = zero != ZeroStage::none && (ranks == 2 || ranks == 4 || ranks == 8);
  const double gain = !own.data_inside ? 1.0 : by_copies ? 0.5 : 0.0;
  const auto behind = [&](double seconds, bool overlap, double window) {
    return seconds - (overlap ? gain * std::min(window, seconds - seconds / buckets) : 0.0);
  };
  const bool gradients = deck_.parallel.overlap.gradients;
  const bool weights = deck_.parallel.overlap.parameters;
  switch (zero) {
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
