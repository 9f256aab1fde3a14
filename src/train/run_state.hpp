// The state of a run that is not a tensor, its place in a checkpoint, and train.skip, which moves
// it.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

#include "checkpoint/file.hpp"
#include "deck/batch_sizes.hpp"
#include "deck/deck.hpp"
#include "optim/optimizer.hpp"
#include "optim/schedules.hpp"
#include "train/verify/divergence.hpp"

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
  SpikeHistory spikes = {};  ///< with train.spike
  /// In the checkpoint alone that train.spike.back saves again: the iteration that the run went
  /// back from, whose checkpoints are abandoned.
  std::int64_t abandoned = 0;
  /// Of identify_training_data() of the run; "" where that is not known.
  std::string train_documents = {};
  std::string train_tokens = {};

  deck::Progress progress() const { return {iteration, consumed_samples}; }
  /// Whether no run has trained yet: the state of an imported model.
  bool is_untrained() const { return iteration == 0 && consumed_samples == 0; }
  /// The first sample of the training data that is neither consumed nor passed over.
  std::int64_t next_sample() const { return consumed_samples + passed_samples; }
  /// As a checkpoint stores it.
  checkpoint::Attributes attributes() const;
  /// Throws DataError when an attribute is missing.
  static RunState from(const checkpoint::Header& header);
};

/// What an iteration did; the same on every rank.
struct StepResult {
  double loss = 0.0;  ///< mean over the batch's tokens
  /// Mean over the batch's sentence labels; absent without a sentence head.
  std::optional<double> sentence_loss = {};
  double gradient_norm = 0.0;  ///< before clipping
  double learning_rate = 0.0;  ///< the next iteration's, as Megatron-LM prints it
  std::int64_t samples = 0;    ///< the global batch
  bool applied = false;        ///< false when the gradient was not finite: no update
  double loss_scale = 1.0;     ///< the next iteration's
  /// The update was skipped while the dynamic loss scale was above its minimum.
  bool searches_scale = false;
  std::optional<std::string> spike = {};              ///< why train.spike skipped the update
  std::optional<std::int64_t> gradient_zeros = {};    ///< with log.norms, where a report is due
  std::optional<double> largest_logit = {};           ///< the same
  std::optional<optim::LayerNorms> layer_norms = {};  ///< with log.norms: layers, likewise

  /// Whether it counts towards train.diverged_after: a loss is not finite, or the gradient is not
  /// and no lower loss scale can help.
  bool is_bad() const { return !has_finite_loss() || (!applied && !searches_scale && !spike); }
  bool has_finite_loss() const {
    return std::isfinite(loss) && std::isfinite(sentence_loss.value_or(0.0));
  }
};

/// The iterations whose data is passed over before the next iteration, if any. What has been
/// passed over before, or trained on because the range is new to the run, is not among them.
std::optional<deck::IterationRange> data_to_skip(const deck::Deck& deck, const RunState& state);

/// Samples that a run which has come to `state` passes over until `last_iteration`.
std::int64_t samples_to_skip(const deck::Deck& deck, RunState state, std::int64_t last_iteration);

/// Moves `state` past the data of `range`, which is what data_to_skip() gave. Returns the samples.
std::int64_t skip_data(const deck::Deck& deck, const deck::IterationRange& range, RunState& state);

}  // namespace trireme::train
