// The residual stream [s, b, h] among tensor ranks: whole on each of them, or under sequence
// parallelism sharded into equal parts of the positions, one for each rank (parallel.sequence).
// Everything that is collective is so over the tensor group. Source: Korthikanti et al., "Reducing
// activation recomputation in large transformer models" (2022), section 4.2.2.
#pragma once

#include <memory>

#include "model/layers/context.hpp"

namespace trireme::model {

/// This rank's shard of `full` [s, b, h] or [T, h]; all of it without sequence parallelism.
Tensor sp_shard(const LayerContext& context, const Tensor& full);

/// Leaves in sp_shard(full) the sum of `full` over the tensor ranks, by a reduce-scatter or an
/// all-reduce: the end of a row-parallel linear. Under sequence parallelism the rest of `full` is
/// left undefined. Collective.
void sp_reduce(const LayerContext& context, const Tensor& full);
/// The same, overlapped with what is enqueued next until wait().
std::unique_ptr<comm::Request> start_sp_reduce(const LayerContext& context, const Tensor& full);

/// Completes `full`, of which each rank has written sp_shard(), by an all-gather: the start of a
/// column-parallel linear. Collective.
void sp_gather(const LayerContext& context, const Tensor& full);
/// The same for a `shard` that may lie elsewhere: copied into `full` and completed there; without
/// sequence parallelism `shard` itself is the result. Collective.
Tensor sp_gather(const LayerContext& context, const Tensor& shard, const Tensor& full);

}  // namespace trireme::model
