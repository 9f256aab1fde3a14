// How passes let communication overlap with them.
#pragma once

#include "model/parameters/placement.hpp"

namespace trireme::model {

/// Called by a stage's passes for the elements of a ParameterStore that they use. Each range is
/// that of a layer's matrices, or that of all else.
class ParameterHooks {
 public:
  virtual ~ParameterHooks() = default;

  /// The weights of `range` are about to be read, and then, most likely, those of `next`, which is
  /// empty where nothing is known.
  virtual void before_use(const Range& range, const Range& next) = 0;
  /// A pass is about to add to the gradients of a layer's matrices.
  virtual void before_gradient(const Range& matrices) = 0;
  /// It has. When they are `complete`, no other pass of this step adds to them, nor to those of the
  /// layers after it.
  virtual void gradient_ready(const Range& matrices, bool complete) = 0;
};

}  // namespace trireme::model
