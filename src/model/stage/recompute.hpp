// Which blocks a stage recomputes in its backward pass instead of keeping their activations.
// Source: Chen et al., "Training deep nets with sublinear memory cost" (2016); the methods are
// those of Megatron-LM's --recompute-method.
#pragma once

#include <vector>

namespace trireme::model {

/// What backward passes recompute. It changes no result: everything is recomputed from the same
/// inputs by the same operations, dropout being keyed by the logical element.
struct Recompute {
  enum class What {
    nothing,
    norms,    ///< the norms of every layer: little work
    uniform,  ///< every layer, in groups of `layers`
    block     ///< each of the first `layers` of a chunk
  };
  What what = What::nothing;
  int layers = 1;  ///< at least 1; of uniform and block
  /// Each tensor rank keeps a share of a segment's input: not under sequence parallelism.
  bool partition = false;
  bool offload = false;  ///< segments' inputs are kept in the host's memory

  /// Whether inputs do not stay where passes read them.
  bool moves_inputs() const { return partition || offload; }
};

/// Consecutive layers of a chunk that are treated alike.
struct Segment {
  int first = 0;  ///< counted from the chunk's first layer
  int count = 0;
  /// Whether only the input of its first layer is kept, from which the backward pass recomputes all
  /// else; if not, each layer's activations are kept.
  bool recomputed = false;

  int end() const { return first + count; }
  bool operator==(const Segment&) const = default;
};

/// The segments of a chunk of `layers` layers, in order.
std::vector<Segment> make_segments(int layers, const Recompute& recompute);

}  // namespace trireme::model
