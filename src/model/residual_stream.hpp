// The residual stream [s, b, h] among tensor ranks: whole on each of them, or cut into equal parts
// of the positions, one for each rank (parallel.sequence). Everything that is collective is so over
// the tensor group. Source: Korthikanti et al., "Reducing activation recomputation in large
// transformer models" (2022), section 4.2.2.
#pragma once

#include <memory>

#include "model/transformer_layer.hpp"

namespace trireme::model {

/// This rank's part of `full` [s, b, h] or [T, h]; all of it where the stream is whole.
Tensor own_part(const LayerContext& context, const Tensor& full);

/// Leaves in own_part(full) the sum of `full` over the tensor ranks: the end of a row-parallel
/// product. Where the stream is cut, the rest of `full` is left undefined. Collective.
void sum_partial(const LayerContext& context, const Tensor& full);
/// The same beside what is queued next.
std::unique_ptr<comm::Request> start_sum_partial(const LayerContext& context, const Tensor& full);

/// Completes `full`, of which each rank has written own_part(): the start of a column-parallel
/// product. Collective.
void gather(const LayerContext& context, const Tensor& full);
/// The same for a `part` that may lie elsewhere: copied into `full` and completed there; where the
/// stream is whole, `part` itself is the result. Collective.
Tensor gather(const LayerContext& context, const Tensor& part, const Tensor& full);

}  // namespace trireme::model
