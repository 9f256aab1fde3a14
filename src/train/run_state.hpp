// The state of a run that is not a tensor, and its place in a checkpoint.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/file.hpp"
#include "deck/batch_sizes.hpp"
#include "optim/loss_scaler.hpp"

namespace trireme::train {

/// How far a run has come.
struct RunState {
  std::int64_t iteration = 0;
  std::int64_t consumed_samples = 0;  ///< of all iterations
  /// Iterations whose update was applied, and their samples: the schedule's position.
  std::int64_t applied_iterations = 0;
  std::int64_t applied_samples = 0;
  std::int64_t skipped = 0;         ///< iterations whose update was not applied
  std::int64_t nan = 0;             ///< iterations whose loss was not finite
  std::int64_t bad_iterations = 0;  ///< in a row, up to now: StepResult::is_bad()
  optim::LossScaleState loss_scale = {};
  /// Training data that train.skip passed over: samples, and the last iteration it belonged to.
  std::int64_t passed_samples = 0;
  std::int64_t passed_through = 0;
  /// Of identify_training_data() of the run; "" where that is not known.
  std::string train_documents = {};
  std::string train_tokens = {};

  deck::Progress progress() const { return {iteration, consumed_samples}; }
  /// The first sample of the training data that is neither consumed nor passed over.
  std::int64_t next_sample() const { return consumed_samples + passed_samples; }
  /// As a checkpoint stores it.
  checkpoint::Attributes attributes() const;
  /// Throws DataError when an attribute is missing.
  static RunState from(const checkpoint::Header& header);
};

}  // namespace trireme::train
