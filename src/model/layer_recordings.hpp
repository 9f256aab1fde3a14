// Passes through single layers that ask the backend for the same operations for every micro-batch.
// A GPU that is given small operations one by one waits for its host between them; recorded, those
// of a layer are given to it at once.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "device/backend.hpp"

namespace trireme::model {

/// The recorded passes of a stage.
class LayerRecordings {
 public:
  enum class Pass { forward, forward_again, backward, backward_input, backward_weights };
  /// Says all that the operations of a pass depend on: which layer of which chunk, the slot whose
  /// activations it works on, and where a backward pass finds the gradient.
  struct Key {
    Pass pass;
    int slot;
    int chunk;
    int layer;
    const void* gradient = nullptr;

    auto operator<=>(const Key&) const = default;
  };

  /// Carries out `work`, the pass of `key`: the first time as it is, then recorded where the
  /// backend records.
  void run(device::Backend& backend, const Key& key, const std::function<void()>& work);

 private:
  std::map<Key, std::unique_ptr<device::Recording>> recordings_;  ///< null: not recorded yet
};

}  // namespace trireme::model
