// The memory of a rank's weights or of their gradients.
#pragma once

#include <vector>

#include "device/backend.hpp"
#include "model/parameters/placement.hpp"

namespace trireme::model {

/// How the matrices of a rank's layers, which are nearly all of a large model, are sharded over the
/// data ranks (ZeRO): not at all; or each rank owns a part and has buffers in which passes find one
/// layer each. Source: Rajbhandari et al., "ZeRO: memory optimizations toward training trillion
/// parameter models" (2020), sections 5.2 and 5.3.
struct ShardingSpec {
  int data_ranks = 1;
  int buffers = 0;  ///< 0: whole matrices. The rank's i-th layer uses buffer i % buffers
};

/// The elements of a Placement in the backend's memory: all that is common to passes is whole on
/// each rank, the layers' matrices are sharded as ShardingSpec says.
class ParameterBuffer {
 public:
  ParameterBuffer() = default;
  /// Allocates and zeroes memory for elements of type `common`, the matrices' of `matrices`.
  /// `placement` must outlive this; `purpose` is for messages.
  ParameterBuffer(device::Backend& backend, const Placement& placement, DType common,
                  DType matrices, const ShardingSpec& sharding, const char* purpose);
  /// The bytes that this allocates.
  static std::size_t planned_bytes(const Placement& placement, DType common, DType matrices,
                                   const ShardingSpec& sharding);

  explicit operator bool() const { return static_cast<bool>(memory_); }
  /// Whether the matrices are sharded over the data ranks.
  bool is_sharded() const { return !parts_.buffers.empty(); }
  /// Whether the matrices' elements are of a 16-bit type and the common ones are not.
  bool is_narrow() const { return narrow_; }
  /// The number of layers' buffers where they are sharded.
  int buffers() const { return static_cast<int>(parts_.buffers.size()); }

  /// The elements of `range` where passes read and write them: of one layer, or of none. Where
  /// matrices are sharded, a place that other layers use as well.
  Tensor at(const Range& range) const;
  /// Where the owner of `range`, one rank's part of a bucket, keeps it. `state` is the number of
  /// owned elements before it. Where matrices are sharded, not where at() has it.
  Tensor own(const Range& range, std::int64_t state) const;
  /// All elements in the placement's order; throws InternalError where they are not held so.
  Tensor all() const;

  /// Writes zeros over all that is kept: everything but the layers' buffers.
  void zero(device::Backend& backend) const;

 private:
  struct Parts {
    bool in_order = false;  ///< one type, nothing sharded
    Tensor all;             ///< then
    Tensor common;          ///< else: the common elements, then the shared copies
    Tensor matrices;        ///< and the layers' where they are whole
    Tensor own;             ///< or this rank's part of each
    std::vector<Tensor> buffers;
    std::size_t bytes = 0;
    static Parts take(std::byte* base, const Placement& placement, DType common, DType matrices,
                      const ShardingSpec& sharding);
  };

  const Placement* placement_ = nullptr;
  Parts parts_;
  bool narrow_ = false;
  std::int64_t common_state_ = 0;  ///< owned elements before those of matrices
  device::Buffer memory_;
};

}  // namespace trireme::model
