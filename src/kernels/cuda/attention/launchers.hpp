// The launchers that attention.cu chooses from. They check no preconditions.
#pragma once

#include "kernels/attention.hpp"

namespace trireme::kernels::cuda {

/// Half types on tensor cores, heads padded to D: 32, 64, 80, 96, 112, 128 or 256. The backward
/// pass wants the row statistics, and ticket and turns zeroed, in the workspace. Each D is
/// instantiated in a file of its own, head_<D>.cu.
template <int D>
void launch_forward(const AttentionForward& args, const Context& context);
template <int D>
void launch_backward(const AttentionBackward& args, const Context& context);

/// The forward pass on compute capability 9.0, heads padded to D: 64, 80, 96, 112 or 128, without
/// dropout, for tensors that fits_boxes. Instantiated in hopper/forward.cu.
template <int D>
void launch_box_forward(const AttentionForward& args, const Context& context);

/// The backward pass on compute capability 9.0, heads padded to D: 64 or 128, without dropout, for
/// tensors that fits_boxes. Wants what launch_backward wants. Instantiated in
/// hopper/backward_<D>.cu.
template <int D>
void launch_box_backward(const AttentionBackward& args, const Context& context);

/// Writes the statistics of each row, from lse, out and dout, to the workspace.
void launch_statistics(const AttentionBackward& args, const Context& context);

/// fp32 on CUDA cores. The backward pass wants the row statistics in the workspace.
void launch_plain_forward(const AttentionForward& args, const Context& context);
void launch_plain_backward(const AttentionBackward& args, const Context& context);

/// Appends to the caches and attends, in any type.
void launch_cached(const AttentionCached& args, const Context& context);

}  // namespace trireme::kernels::cuda
