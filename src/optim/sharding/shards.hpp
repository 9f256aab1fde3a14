// Which part of the flat buffers each rank updates (ZeRO-1): buckets, their shards, and the owned
// shard with its master copy. Source: Rajbhandari et al., "ZeRO: memory optimizations toward
// training trillion parameter models" (2020), section 5.1.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/backend.hpp"
#include "model/parameters/store.hpp"
#include "model/parameters/table.hpp"

namespace trireme::optim {

using model::Range;

/// The buckets of a flat buffer: consecutive, each divisible by the number of shards. Shard r of a
/// bucket is its r-th equal part.
class Shards {
 public:
  /// Divides the elements before the last of `ends`, which ascend and are multiples of `count`,
  /// into buckets of at most `bucket` elements. No bucket crosses one of `ends`; those between two
  /// ends are about equal. `count` 1: every rank owns everything. Throws InternalError when an end
  /// is not a multiple of `count`.
  Shards(const std::vector<std::int64_t>& ends, std::int64_t bucket, int count);

  int count() const { return count_; }
  const std::vector<Range>& buckets() const { return buckets_; }
  /// The buckets in `range`, whose ends are ends of buckets.
  std::span<const Range> buckets_in(const Range& range) const;

  /// The ranges that shard `index` owns, one per bucket, in order.
  std::vector<Range> owned(int index) const;
  /// The range of `bucket` that shard `index` owns, and the shard's elements before it.
  Range owned_of(const Range& bucket, int index) const;
  std::int64_t state_offset(const Range& bucket) const { return bucket.begin / count_; }

 private:
  int count_;
  std::vector<Range> buckets_;
};

/// A range of this rank's flat buffers that belongs to one parameter: the unit of checkpoints.
struct OwnedPart {
  const model::Parameter* parameter = nullptr;
  grid::Hyperslabs slabs;          ///< of the logical tensor, in memory order
  std::int64_t weight_offset = 0;  ///< in the placement, of weight and gradient
  std::int64_t state_offset = 0;   ///< into optimizer states and a separate master copy
  bool primary = true;             ///< true on exactly one rank for each element

  std::int64_t elements() const { return grid::count_elements(slabs); }
  Range range() const { return {weight_offset, weight_offset + elements()}; }
};

/// A range of the flat buffers that one kernel call updates: this rank's shard of a bucket.
struct OwnedRange {
  Range range;
  std::int64_t state_offset = 0;  ///< owned elements before it
  kernels::IndexRanges decayed;   ///< where weight decay applies
  kernels::IndexRanges counted;   ///< where this rank counts in norms

  /// Its part of `state`, a tensor of all owned elements.
  Tensor in(const Tensor& state) const { return state.rows(state_offset, range.size()); }
};

/// The shard of weights and gradients that a rank updates. 16-bit weights have an fp32 master copy
/// of it, which is updated and then rounded into them.
class OwnedShard {
 public:
  /// Allocates the master copy. All must outlive it. With one shard every rank owns everything, and
  /// data rank 0 counts it in norms; otherwise this rank owns shard `data_rank`.
  OwnedShard(device::Backend& backend, model::ParameterStore& parameters, const Shards& shards,
             int data_rank);

  /// Bytes of the master copy, where weights have another type, and of the buffer that gradients of
  /// another type are converted in.
  static std::size_t planned_bytes(const model::Placement& placement, const Shards& shards,
                                   const Precision& precision);

  /// In the order of the shards' buckets, and parameter by parameter.
  const std::vector<OwnedRange>& ranges() const { return ranges_; }
  const std::vector<OwnedPart>& parts() const { return parts_; }
  /// All owned elements, padding included; and those before the matrices of layers.
  std::int64_t elements() const { return elements_; }
  std::int64_t common_elements() const { return common_elements_; }
  /// Whether each data rank owns another shard.
  bool is_sharded() const { return is_sharded_; }
  const model::Placement& placement() const { return parameters_.placement(); }
  /// The types of what updates read and write.
  const Precision& precision() const { return parameters_.precision(); }
  bool has_master_copy() const { return static_cast<bool>(master_); }

  /// The master weights, which a checkpoint saves.
  template <typename Owned>
  Tensor master(const Owned& owned) const {
    const Range range = range_of(owned);
    return has_master_copy() ? master_.rows(owned.state_offset, range.size()) : weights(owned);
  }
  /// All of a parameter's master weights on this rank, in its local shape; throws InternalError
  /// where they are sharded. Of the placement's parameters; not of shared copies.
  Tensor whole_master(const std::string& name) const;
  /// The weights as passes read them.
  template <typename Owned>
  Tensor weights(const Owned& owned) const {
    return parameters_.weight_buffer().own(range_of(owned), owned.state_offset);
  }
  /// The 16-bit weights that the master copy is rounded into; an empty tensor without one.
  template <typename Owned>
  Tensor rounded(const Owned& owned) const {
    return has_master_copy() ? weights(owned) : Tensor{};
  }
  /// The gradient as passes sum it.
  template <typename Owned>
  Tensor summed_gradient(const Owned& owned) const {
    return parameters_.gradient_buffer().own(range_of(owned), owned.state_offset);
  }
  /// The gradient in the master weights' type. If passes sum it in 16 bits, it is converted in a
  /// buffer that the next call overwrites.
  Tensor gradient(const OwnedRange& owned) const;

 private:
  static Range range_of(const OwnedPart& owned) { return owned.range(); }
  static Range range_of(const OwnedRange& owned) { return owned.range; }
  void find_parts(const std::vector<Range>& owned, bool first_copy);
  void build_ranges(const std::vector<Range>& owned);

  device::Backend& backend_;
  model::ParameterStore& parameters_;
  std::int64_t elements_ = 0;
  std::int64_t common_elements_ = 0;
  bool is_sharded_ = false;
  std::vector<OwnedPart> parts_;
  std::vector<OwnedRange> ranges_;
  device::Buffer bounds_memory_;  ///< of the ranges' IndexRanges
  device::Buffer memory_;
  Tensor master_;     ///< [elements()], only with 16-bit weights
  Tensor converted_;  ///< as large as the largest range whose gradient is summed in 16 bits
};

}  // namespace trireme::optim
