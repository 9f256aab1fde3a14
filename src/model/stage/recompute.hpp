// Which blocks a stage recomputes in its backward pass instead of keeping their activations.
// Source: Chen et al., "Training deep nets with sublinear memory cost" (2016); the methods are
// those of Megatron-LM's --recompute-method.
#pragma once

#include <vector>

#include "model/context.hpp"

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

/// Consecutive layers of a chunk that are all recomputed, or all kept.
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

/// The inputs of the recomputed segments of every slot. Passes read and write them in place, unless
/// Recompute::partition keeps a shard of each, or offload keeps them in host memory. Then passes
/// use working buffers that slots share (at_hand()): the forward pass copies an input from there,
/// the backward pass fetches it back. One copy runs at a time, overlapped with a pass through the
/// segment before or after.
class SegmentInputs {
 public:
  SegmentInputs() = default;
  /// Takes them, for slots of `segments` that are recomputed, from `arena`, of the backend's
  /// memory, or with Recompute::offload from `host`; and from `arena` the working buffers.
  static SegmentInputs take(Arena& arena, Arena& host, const LayerSizes& sizes,
                            const Recompute& recompute, int segments, int slots);

  /// Segments of a slot.
  int segments() const { return static_cast<int>(kept_.front().size()); }
  /// The part of an input that this rank keeps.
  Tensor kept(int slot, int segment) const { return kept_[slot][segment]; }

  /// Where passes of `slot` have the input of `segment`: [S, b, h]. Consecutive segments have
  /// different places. Two slots may share those of their first segments, see StageWork::input().
  Tensor at_hand(int slot, int segment) const {
    if (work_.empty()) return kept_[slot][segment];
    return work_[segment % 2 == 1 ? 0 : 1 + slot % (work_.size() - 1)];
  }

  /// Starts to keep the input in the working buffer, which must not change until finish_keeping().
  void start_keeping(const LayerContext& context, int slot, int segment) const;
  void finish_keeping(const LayerContext& context) const;
  /// Starts to fetch the kept input into the working buffer, where it is after finish_fetching(),
  /// which is collective over the tensor group. Nothing for segment -1.
  void start_fetching(const LayerContext& context, int slot, int segment) const;
  void finish_fetching(const LayerContext& context, int slot, int segment) const;

 private:
  /// The part of the working buffer that this rank keeps.
  Tensor own_share(const LayerContext& context, int slot, int segment) const;

  /// Copies between a working buffer and its kept part; overlapped with what is enqueued next if
  /// that is in host memory.
  void start_copy(const LayerContext& context, const Tensor& to, const Tensor& from) const;
  void finish_copies(const LayerContext& context) const;

  Recompute recompute_;
  std::vector<std::vector<Tensor>> kept_;  ///< of each slot and segment
  /// Working buffers, none if inputs stay in place: one of the odd segments, then those of the even
  /// ones. With several slots these are two: the pipeline receives into one while a pass uses the
  /// other.
  std::vector<Tensor> work_;
};

}  // namespace trireme::model
