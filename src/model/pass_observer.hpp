// How passes tell when communication may run beside them.
#pragma once

#include "model/parameter_table.hpp"

namespace trireme::model {

/// Told by a stage's passes what they do with the elements of a ParameterStore. Each range is that
/// of a layer's matrices, or that of all else.
class PassObserver {
 public:
  virtual ~PassObserver() = default;

  /// The weights of `range` are about to be read, and then, most likely, those of `next`, which is
  /// empty where nothing is known.
  virtual void before_reading(const Range& range, const Range& next) = 0;
  /// A pass is about to add to the gradients of a layer's matrices.
  virtual void before_adding(const Range& matrices) = 0;
  /// It has. When they are `complete`, no other pass of this step adds to them, nor to those of the
  /// layers behind.
  virtual void after_adding(const Range& matrices, bool complete) = 0;
};

}  // namespace trireme::model
