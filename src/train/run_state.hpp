// The state of a run that is not a tensor, and its place in a checkpoint.
#pragma once

#include <cstdint>

#include "checkpoint/reader.hpp"
#include "optim/loss_scaler.hpp"

namespace trireme::train {

/// How far a run has come.
struct RunState {
  std::int64_t iteration = 0;
  std::int64_t consumed_samples = 0;
  /// Iterations whose update was applied, and their samples: the schedule's position.
  std::int64_t applied_iterations = 0;
  std::int64_t applied_samples = 0;
  std::int64_t skipped = 0;  ///< iterations whose update was not applied
  std::int64_t nan = 0;      ///< iterations whose loss was not finite
  optim::LossScaleState loss_scale = {};

  /// As a checkpoint stores it.
  checkpoint::Attributes attributes() const;
  /// Throws DataError when an attribute is missing.
  static RunState from(const checkpoint::Header& header);
};

}  // namespace trireme::train
