// CUDA graphs of passes through single layers, which enqueue the same kernels for every
// micro-batch. A GPU that gets small kernels one by one waits for its host between them; captured,
// those of a layer are launched at once.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "device/backend.hpp"

namespace trireme::model {

/// The captured passes of a stage.
class CudaGraphs {
 public:
  enum class Pass { forward, recompute_forward, backward, backward_input, backward_weights };
  /// All that the kernels of a pass depend on: which layer of which chunk, the slot whose
  /// activations it works on, and where a backward pass finds the gradient.
  struct Key {
    Pass pass;
    int slot;
    int chunk;
    int layer;
    const void* gradient = nullptr;

    auto operator<=>(const Key&) const = default;
  };

  /// Runs `work`, the pass of `key`: the first time as it is, then captured where the backend
  /// captures.
  void run(device::Backend& backend, const Key& key, const std::function<void()>& work);

 private:
  std::map<Key, std::unique_ptr<device::Recording>> graphs_;  ///< null: not captured yet
};

}  // namespace trireme::model
