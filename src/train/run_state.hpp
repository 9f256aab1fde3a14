// The state of a run that is not a tensor, its place in a checkpoint, and train.skip, which moves
// it; train.spike; and why and when a run stops.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/file.hpp"
#include "comm/communicator.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "deck/deck.hpp"
#include "optim/optimizer.hpp"
#include "optim/schedules.hpp"

namespace trireme::train {

// train.spike: iterations whose loss or gradient norm is far above those before them, whose updates
// are skipped.

/// The losses and gradient norms of the last iterations that were no spikes; part of a checkpoint,
/// so that a run which resumes decides as one that did not stop.
struct SpikeHistory {
  std::vector<double> losses, norms;  ///< oldest first
  std::int64_t skipped = 0;           ///< updates of the run so far

  /// Takes an iteration in, and forgets those before the last `window`.
  void add(double loss, double norm, std::int64_t window);

  /// All of it in one line, exactly; and back. Throws DataError for another text.
  std::string text() const;
  static SpikeHistory from(const std::string& text);

  bool operator==(const SpikeHistory&) const = default;
};

/// What of an iteration is a spike, in words: more than `rule.above` standard deviations over the
/// mean of `history`. Nothing before that holds `rule.window` iterations, nor after `rule.limit`
/// spikes. Where `rule` is unset nothing is.
std::optional<std::string> find_spike(const deck::Spike& rule, const SpikeHistory& history,
                                      double loss, double norm);

// ---- the state

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
  std::string tokenizer = {};

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

/// The progress before the last iteration of a run that has come to `now`. In a ramp-up its batch
/// was smaller than the global one, which it is taken to have been where `batch` has changed since.
deck::Progress before_last_iteration(const deck::Batch& batch, const deck::Progress& now);

/// What an iteration did; the same on every rank.
struct StepResult {
  double loss = 0.0;  ///< mean over the batch's tokens
  /// Mean over the batch's sentence labels; absent without a sentence head.
  std::optional<double> sentence_loss = {};
  double gradient_norm = 0.0;  ///< before clipping
  double learning_rate = 0.0;  ///< the next iteration's, as Megatron-LM prints it
  std::int64_t samples = 0;    ///< the global batch
  bool applied = false;        ///< false without an update: the gradient was not finite, or a spike
  double loss_scale = 1.0;     ///< the next iteration's
  /// The update was skipped while the dynamic loss scale was above its minimum.
  bool searches_scale = false;
  std::optional<std::string> spike = {};              ///< why train.spike skipped the update
  std::optional<std::string> diverged = {};           ///< why no loss scale is left
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

/// Samples of the training data up to the end of a run that has come to `state`: those that it
/// takes, and those that it has passed over or will pass over.
std::int64_t samples_needed(const deck::Deck& deck, const RunState& state);

/// Moves `state` past the data of `range`, which is what data_to_skip() gave. Returns the samples.
std::int64_t skip_data(const deck::Deck& deck, const deck::IterationRange& range, RunState& state);

// ---- why and when a run stops before its last iteration, and what its launcher is told

/// Why the training loop ended.
enum class StopReason {
  none,             ///< the run continues
  finished,         ///< all iterations are done
  exit_interval,    ///< train.exit_interval
  kill_switch,      ///< the file train.kill_switch exists
  exit_duration,    ///< train.exit_duration
  time_limit,       ///< --time-limit
  signal,           ///< SIGUSR1, SIGTERM, SIGINT or SIGHUP
  corrupted,        ///< train.verify found wrong results of a GPU, a host or a link
  diverged,         ///< train.diverged_after, or weights that are not finite
  unreadable_data,  ///< a dataset was changed or cannot be read any more
  bad_data,         ///< a dataset holds what no vocabulary has
};

/// Zero where the deck or a person asked for the stop, 75 where the run should be queued again, 76
/// where that would not help, 77 where it would on other hosts.
constexpr ExitCode exit_code(StopReason reason) {
  switch (reason) {
    case StopReason::exit_duration:
    case StopReason::time_limit:
    case StopReason::signal:
      return ExitCode::stopped_early;
    case StopReason::corrupted:
      return ExitCode::corrupted;
    case StopReason::diverged:
      return ExitCode::diverged;
    case StopReason::unreadable_data:
      return ExitCode::io;
    case StopReason::bad_data:
      return ExitCode::data;
    case StopReason::none:
    case StopReason::finished:
    case StopReason::exit_interval:
    case StopReason::kill_switch:
      return ExitCode::success;
  }
  return ExitCode::internal;
}

/// "finished", "the kill switch exists", ...
constexpr const char* describe(StopReason reason) {
  switch (reason) {
    case StopReason::none:
      return "running";
    case StopReason::finished:
      return "finished";
    case StopReason::exit_interval:
      return "train.exit_interval is reached";
    case StopReason::kill_switch:
      return "the kill switch exists";
    case StopReason::exit_duration:
      return "train.exit_duration is over";
    case StopReason::time_limit:
      return "the time limit is near";
    case StopReason::signal:
      return "a signal asked for it";
    case StopReason::corrupted:
      return "silent data corruption";
    case StopReason::diverged:
      return "training diverged";
    case StopReason::unreadable_data:
      return "a dataset has changed or cannot be read";
    case StopReason::bad_data:
      return "a dataset holds bad data";
  }
  return "?";
}

/// The time after which an iteration has stalled, learned from the time of earlier ones.
class StepLimit {
 public:
  /// An iteration with `samples` took `seconds`. The first ones, in which algorithms are chosen,
  /// are not counted.
  void note(double seconds, std::int64_t samples);
  /// Of an iteration with `samples`: five times the median, 10 seconds at least; empty while too
  /// few iterations are known.
  std::optional<double> seconds(std::int64_t samples) const;

 private:
  static constexpr std::size_t kRemembered = 15;
  std::int64_t count_ = 0;
  std::deque<double> seconds_per_sample_;  ///< of the newest iterations
};

/// Signals, the kill switch, limits of time and of iterations: what any rank sees holds for all.
class StopConditions {
 public:
  /// `time_limit` is in seconds of `since_start`; `parameters`, those of the model, tell how long a
  /// save may take before there has been one. All must outlive this.
  StopConditions(const deck::Deck& deck, const deck::BatchSizes& batches, comm::Communicator& world,
                 const Stopwatch& since_start, std::optional<double> time_limit,
                 std::int64_t parameters);

  /// Tells how long an iteration and a save took.
  void note_step(double seconds) {
    longest_step_ = std::max(longest_step_, seconds);
    latest_step_ = seconds;
  }
  void note_save(double seconds) { save_ = seconds; }
  /// Tells of one of evaluate.tasks: its interval and its number of samples.
  void note_task(const std::optional<deck::Length>& every, std::int64_t samples) {
    tasks_.emplace_back(every, samples);
  }

  /// Whether a run may start at all. Collective over all ranks, as is after_step(); both return the
  /// same on every rank, `none` to continue.
  StopReason before_start() const;
  /// Whether a signal has asked any rank to stop. Collective over all ranks, which return the same.
  bool signalled() const;
  /// Whether to stop after the iteration that took the run from `before` to `now`; `end` is where
  /// it ends anyway. `data` is the exit code of what is wrong with the next batch on this rank.
  StopReason after_step(const deck::Progress& before, const deck::Progress& now,
                        const deck::Progress& end, ExitCode data = ExitCode::success) const;

 private:
  bool sees_kill_switch() const;
  /// What one more iteration takes at most, its evaluations included.
  double next_iteration_seconds(const deck::Progress& before, const deck::Progress& now,
                                const deck::Progress& end) const;

  const deck::Deck& deck_;
  const deck::BatchSizes& batches_;
  comm::Communicator& world_;
  const Stopwatch& since_start_;
  std::optional<double> time_limit_;
  double longest_step_ = 0.0;  ///< seconds
  double latest_step_ = 0.0;   ///< seconds
  double save_;                ///< seconds that the last save took
  std::vector<std::pair<std::optional<deck::Length>, std::int64_t>> tasks_;  ///< of note_task()
};

}  // namespace trireme::train
