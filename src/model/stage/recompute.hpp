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

/// The inputs of the segments of every slot, side by side in one block. Passes read and write them
/// in place. But with Recompute::partition or offload the block has a share of each, or lies in the
/// host's memory: passes then find an input at_hand(), in streams that slots use in turn, from
/// where it is kept in the forward and fetched to in the backward pass. One copy is under way at a
/// time, overlapped with a pass through the segment before or after.
class SegmentInputs {
 public:
  SegmentInputs() = default;
  /// Takes them, for slots of `segments` that are recomputed, from `arena`, of the backend's
  /// memory, or with Recompute::offload from `host`; and from `arena` the streams at hand.
  static SegmentInputs take(Arena& arena, Arena& host, const LayerSizes& sizes,
                            const Recompute& recompute, int segments, int slots);

  /// Segments of a slot.
  int segments() const { return static_cast<int>(kept_.front().size()); }
  /// What this rank keeps of an input.
  Tensor kept(int slot, int segment) const { return kept_[slot][segment]; }

  /// Where passes of `slot` have the input of `segment`: [S, b, h]. Consecutive segments have
  /// different places. Two slots may share those of their first segments, see StageWork::input().
  Tensor at_hand(int slot, int segment) const {
    if (work_.empty()) return kept_[slot][segment];
    return work_[segment % 2 == 1 ? 0 : 1 + slot % (work_.size() - 1)];
  }

  /// Keeps the input at hand, which must stay as it is until finish_keeping().
  void start_keeping(const LayerContext& context, int slot, int segment) const;
  void finish_keeping(const LayerContext& context) const;
  /// Puts the kept input at hand: there from finish_fetching() on, which is collective over the
  /// tensor group. Segment -1, the one before the first, has none.
  void start_fetching(const LayerContext& context, int slot, int segment) const;
  void finish_fetching(const LayerContext& context, int slot, int segment) const;

 private:
  /// What this rank keeps of the input at hand.
  Tensor own_share(const LayerContext& context, int slot, int segment) const;

  /// Copies between an input at hand and its kept share, overlapped with what is enqueued next
  /// where the share is in the host's memory.
  void start_copy(const LayerContext& context, const Tensor& to, const Tensor& from) const;
  void finish_copies(const LayerContext& context) const;

  Recompute recompute_;
  std::vector<std::vector<Tensor>> kept_;  ///< of each slot and segment
  /// Streams at hand, none where inputs stay: that of the odd segments, then those of the even
  /// ones, two if there are slots for it, since the pipeline receives into one of them while the
  /// other is in use.
  std::vector<Tensor> work_;
};

}  // namespace trireme::model
