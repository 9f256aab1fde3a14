// Which of several ways to the same result is the fastest, found by running them.
#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "core/tensor.hpp"
#include "kernels/cuda/context.hpp"

namespace trireme::kernels::cuda {

/// Operands to time with: random numbers in memory of their own.
class StandIns {
 public:
  explicit StandIns(const Context& context) : context_(context) {}

  /// A tensor like `tensor`, which lasts as long as this; `tensor` itself where there is no memory
  /// for it.
  Tensor instead_of(const Tensor& tensor);

 private:
  const Context& context_;
  std::vector<std::shared_ptr<void>> memory_;
};

/// The fastest of `count` ways, the first of them that are as fast as it; nothing when none runs.
/// `run(i)` queues way i on context.stream, and returns whether it could. Those `longest` that do
/// best in a few calls are timed at length. `warm`: the GPU has been under load until now. Waits
/// for context.stream.
std::optional<std::size_t> fastest(std::size_t count, const std::function<bool(std::size_t)>& run,
                                   const Context& context, bool warm,
                                   std::size_t longest = std::numeric_limits<std::size_t>::max());

}  // namespace trireme::kernels::cuda
