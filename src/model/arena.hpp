// One allocation cut into tensors; the same code counts the bytes beforehand.
#pragma once

#include <algorithm>
#include <cstddef>

#include "device/tensor.hpp"

namespace trireme::model {

/// Hands out consecutive tensors of one block of memory. Without a block it only counts: the plan
/// and the allocation come from the same calls, so they cannot disagree.
class Arena {
 public:
  /// Counts only; its tensors have no data.
  Arena() = default;
  /// Cuts up `base`, which must hold what a counting run of the same calls reported.
  explicit Arena(void* base) : base_(static_cast<std::byte*>(base)) {}

  /// The next tensor, aligned to 256 bytes.
  Tensor take(DType dtype, Shape shape) {
    const std::size_t begin = bytes_;
    bytes_ += (shape.size() * size_of(dtype) + kAlignment - 1) / kAlignment * kAlignment;
    return {base_ ? base_ + begin : nullptr, dtype, shape};
  }

  /// The next `count` 32-bit integers.
  std::int32_t* take_ints(std::int64_t count) {
    return static_cast<std::int32_t*>(take(DType::f32, {count}).data);
  }

  /// Calls take(i) for 0 <= i < count, each of which starts at the same place: alternatives, only
  /// one of which is in use at a time.
  template <typename Take>
  void overlay(std::size_t count, const Take& take) {
    const std::size_t begin = bytes_;
    std::size_t end = begin;
    for (std::size_t i = 0; i < count; ++i) {
      bytes_ = begin;
      take(i);
      end = std::max(end, bytes_);
    }
    bytes_ = end;
  }

  /// Bytes handed out so far, alignment included.
  std::size_t bytes() const { return bytes_; }

 private:
  static constexpr std::size_t kAlignment = 256;
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace trireme::model
