// The memory of a rank's weights or of their gradients.
#pragma once

#include <vector>

#include "device/backend.hpp"
#include "model/parameter_table.hpp"

namespace trireme::model {

/// How much a rank holds of its layers' matrices, which are nearly all of a large model: all of
/// them, or the part that it owns among the data ranks, and buffers that passes find one layer each
/// in (ZeRO). Source: Rajbhandari et al., "ZeRO: memory optimizations toward training trillion
/// parameter models" (2020), sections 5.2 and 5.3.
struct Holding {
  int data_ranks = 1;
  int buffers = 0;  ///< 0: whole matrices. The rank's i-th layer uses buffer i % buffers
};

/// The elements of a Placement: all that is common to passes is whole on each rank, the layers'
/// matrices are held as `Holding` says.
class FlatMemory {
 public:
  FlatMemory() = default;
  /// Allocates and zeroes memory for elements of type `common`, the matrices' of `matrices`.
  /// `placement` must outlive this; `purpose` is for messages.
  FlatMemory(device::Backend& backend, const Placement& placement, DType common, DType matrices,
             const Holding& holding, const char* purpose);
  /// The bytes that this allocates.
  static std::size_t planned_bytes(const Placement& placement, DType common, DType matrices,
                                   const Holding& holding);

  explicit operator bool() const { return static_cast<bool>(memory_); }
  /// Whether the rank holds a part of the matrices.
  bool is_cut() const { return !parts_.buffers.empty(); }
  /// Whether the matrices' elements are of a half type and the common ones are not.
  bool is_narrow() const { return narrow_; }
  /// The number of layers' buffers where they are cut.
  int buffers() const { return static_cast<int>(parts_.buffers.size()); }

  /// The elements of `range` where passes read and write them: of one layer, or of none. Where
  /// matrices are cut, a place that other layers use as well.
  Tensor at(const Range& range) const;
  /// Where the owner of `range`, one rank's part of a bucket, keeps it. `state` is the number of
  /// owned elements before it. Where matrices are cut, not where at() has it.
  Tensor own(const Range& range, std::int64_t state) const;
  /// All elements in the placement's order; throws InternalError where they are not held so.
  Tensor all() const;

  /// Writes zeros over all that is kept: everything but the layers' buffers.
  void zero(device::Backend& backend) const;

 private:
  struct Parts {
    bool in_order = false;  ///< one type, nothing cut
    Tensor all;             ///< then
    Tensor common;          ///< else: the common elements, then the shared copies
    Tensor matrices;        ///< and the layers' where they are whole
    Tensor own;             ///< or this rank's part of each
    std::vector<Tensor> buffers;
    std::size_t bytes = 0;
    static Parts take(std::byte* base, const Placement& placement, DType common, DType matrices,
                      const Holding& holding);
  };

  const Placement* placement_ = nullptr;
  Parts parts_;
  bool narrow_ = false;
  std::int64_t common_state_ = 0;  ///< owned elements before those of matrices
  device::Buffer memory_;
};

}  // namespace trireme::model
