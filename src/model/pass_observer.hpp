// How passes tell when communication may run beside them.
#pragma once

#include <cstdint>

namespace trireme::model {

/// Told by a stage's passes what they are about to do with the flat buffers of a ParameterStore.
class PassObserver {
 public:
  virtual ~PassObserver() = default;

  /// The weights [begin, end) are about to be read.
  virtual void before_reading(std::int64_t begin, std::int64_t end) = 0;
  /// The gradients of this stage's own parameters from `begin` on are complete: no pass of this
  /// step adds to them any more. Told with ever smaller `begin`.
  virtual void gradients_complete_from(std::int64_t begin) = 0;
};

}  // namespace trireme::model
