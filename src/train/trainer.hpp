// The training run of one rank: the checkpoints that it writes, everything else that it holds,
// and the loop.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/file.hpp"
#include "comm/mpi/mpi_communicator.hpp"
#include "core/clock.hpp"
#include "deck/deck.hpp"
#include "device/timers.hpp"
#include "optim/optimizer.hpp"
#include "plan/run_plan.hpp"
#include "plan/search/layout_search.hpp"
#include "plan/setup.hpp"
#include "report/reporter.hpp"
#include "train/run_state.hpp"
#include "train/stage_runner.hpp"
#include "train/startup/startup.hpp"
#include "train/training_log.hpp"
#include "train/verify/step_verifier.hpp"

namespace trireme::train {

/// Whether checkpoint.keep_every keeps this one. Samples are counted as the run that wrote it did,
/// whose batches may have been others than `deck` has; one that cannot be read is kept.
bool is_milestone(const deck::Deck& deck, const checkpoint::Step& step);

/// How many more checkpoints than those in its folder now a run from `now` to `end` has at the same
/// time, at most 64: reserving their space takes seconds. checkpoint.keep deletes an old one once
/// the new one exists, of which `replaced` are no milestones. 1 where all are kept, which users
/// have to move away; milestones to come are not counted.
int max_new_checkpoints(const deck::Deck& deck, const deck::Progress& now,
                        const deck::Progress& end, std::int64_t replaced);

/// Writes a run's checkpoints and deletes old ones. All ranks have one and call it together.
class RunCheckpoints {
 public:
  /// `reporter` is null but on rank 0, `lock` where the folder has none. All must outlive this.
  RunCheckpoints(const deck::Deck& deck, comm::Groups& groups, device::Backend& backend,
                 const model::ParameterStore& parameters, optim::Optimizer& optimizer,
                 report::Reporter* reporter, const FolderLock* lock);

  /// Loads weights, moments and the step of `path`, the checkpoint of `state`. Throws as
  /// checkpoint::load(), on every rank.
  void load(const std::filesystem::path& path, const RunState& state);

  /// The same of the local checkpoint of `state`, from this rank's shard.
  void load_local(const RunState& state);

  /// Finds what would keep the run from `now` to `end` from saving before it has trained for hours.
  /// Throws CollectiveError.
  void preflight(const deck::Progress& now, const deck::Progress& end);

  /// Writes the checkpoint of `state`, and reports it. Returns the seconds it took. Throws
  /// CollectiveError.
  double save(const RunState& state, device::Timers* timers);

  /// Starts to write the checkpoint of `state` while training continues (checkpoint.async); waits
  /// for the one in flight, and says so. Returns the seconds that it took. Throws CollectiveError.
  double start_save(const RunState& state, device::Timers* timers);
  /// Whether start_save() and start_local() can be used at all.
  bool saves_in_background() const { return async_; }
  /// Starts to write the local checkpoint of `state` (checkpoint.local), unless a checkpoint is in
  /// flight, whatever checkpoint.async is. Returns the seconds that it took. Throws
  /// CollectiveError.
  double start_local(const RunState& state);
  /// Between iterations: takes a step of the checkpoint in flight, or with `wait` all of them.
  /// Returns the seconds since its start when it is published. A file that cannot be written is a
  /// warning; two shared ones in a row throw CollectiveError, and so do two local ones where there
  /// is no checkpoint.every. Collective.
  std::optional<double> advance_save(bool wait = false);
  /// `call` is called as soon as a checkpoint may have been published, or a local one is complete.
  void when_published(std::function<void()> call) { published_ = std::move(call); }
  /// Makes the backend's later work, which changes weights, wait for the copies of start_save().
  void finish_copies();

  /// The `back`-th newest checkpoint in the run's folder up to `iteration`, or the oldest where
  /// there are fewer; empty where there is none. None may be in flight. Collective; throws
  /// CollectiveError.
  std::optional<std::filesystem::path> earlier(std::int64_t back, std::int64_t iteration);
  /// Saves `state`, with which the run resumes from an earlier checkpoint, in place of that one;
  /// then newer ones are superseded (with checkpoint.keep deleted) and newer local ones deleted, so
  /// that a start finds none of them. Collective; throws CollectiveError.
  void save_rewound(const RunState& state);

  /// Deletes the checkpoints that checkpoint.keep does not keep, once after each save. Call it when
  /// the last one has proved to be good.
  void delete_old();
  /// After each save, once the run has trained further: deletes newer local checkpoints that this
  /// process did not start, which it could not use. Not at a stop: a user may stop a run because
  /// its layout is a mistake.
  void delete_unused_local();

  /// The newest checkpoint that was written or loaded, and its iteration; a fresh model is never
  /// saved.
  const std::optional<std::filesystem::path>& last() const { return last_; }
  std::int64_t last_iteration() const { return last_iteration_; }

 private:
  const deck::Deck& deck_;
  comm::Groups& groups_;
  device::Backend& backend_;
  const model::ParameterStore& parameters_;
  optim::Optimizer& optimizer_;
  report::Reporter* reporter_;
  const FolderLock* lock_;
  std::optional<std::filesystem::path> last_;
  std::int64_t last_iteration_ = 0;
  bool deletion_due_ = false;
  std::optional<std::int64_t> unused_local_after_;  ///< the iteration saved, until they are deleted
  std::set<std::int64_t> own_local_;                ///< of start_local(), after the last save

  /// The checkpoint in flight.
  struct InFlight {
    std::int64_t iteration = 0;
    std::filesystem::path path;
    Stopwatch since_start;
    double stall_seconds = 0.0;  ///< for which training waited
    bool local = false;
  };
  /// Names `saved` as the newest checkpoint and reports it.
  void note_saved(const InFlight& saved, bool background);
  /// Warns that the checkpoint in flight cannot be written, or throws, as advance_save() says.
  void note_failed(const IoError& error);
  /// preflight() of the disks of checkpoint.local.
  void preflight_local();
  std::filesystem::path checked_path(const RunState& state);
  /// checkpoint.compression; 0 without.
  int compression() const { return static_cast<int>(deck_.checkpoint.compression.value_or(0)); }

  bool async_ = false;
  std::vector<int> partners_;  ///< the nodes of the ranks, with checkpoint.local.partner
  /// Null without checkpoint.async and checkpoint.local.
  std::unique_ptr<checkpoint::BackgroundSave> background_;
  /// is_milestone(), of each checkpoint once. Rank 0 alone.
  bool keeps(const checkpoint::Step& step);
  std::map<std::int64_t, bool> milestones_;  ///< by iteration
  InFlight in_flight_;
  std::function<void()> published_ = [] {};
  bool shared_failed_ = false;   ///< the last shared one of the background saves
  bool local_failed_ = false;    ///< the last local one
  bool left_out_local_ = false;  ///< a local checkpoint, because another one was in flight
};

// ---- the run

/// What the command line adds to the deck.
struct TrainerOptions {
  std::optional<double> time_limit;  ///< seconds from the program's start
  Stopwatch since_start;             ///< running since the program's start
  RestartPoint restart;
  /// identify_training_data(), for the checkpoints; known to rank 0, which writes it.
  TrainingData training_data = {};
  /// Whether the run has finished before where it starts now; known to rank 0.
  bool finished = false;
  /// Of the run folder; on rank 0 alone, where the run has one. Must outlive the trainer.
  const FolderLock* lock = nullptr;
  /// Records the iterations of log.trace; null without it. Must outlive the trainer.
  Timeline* timeline = nullptr;
  /// Iterations that a profiler records: those in the NVTX range "profile".
  std::optional<deck::IterationRange> profiled = {};
  /// What a step should take, to be compared with what it takes.
  std::optional<plan::ExpectedStep> expected = {};
};

/// A run in progress. Making one allocates everything; run() allocates nothing of size.
class Trainer {
 public:
  /// Opens the data, builds the model, loads the checkpoint to restart from. `reporter` is null but
  /// on rank 0. All must outlive this. Collective over all ranks. Throws as open_dataset(),
  /// Backend::allocate() and checkpoint::load(); the first two on the ranks alone that meet the
  /// error, whose caller must end the others.
  Trainer(const deck::Deck& deck, const plan::Vocabulary& vocabulary, comm::Groups& groups,
          device::Backend& backend, report::Reporter* reporter, const TrainerOptions& options);

  /// Trains until the deck's last iteration, until something asks to stop or training has diverged;
  /// saves and evaluates as the deck says. Saves no weights that are not finite, and while
  /// iterations are bad none but those at a stop. Collective over all ranks, and every rank returns
  /// the same reason. Throws on every rank as step() and checkpoint::save(); on some alone
  /// DataError for an id outside the vocabulary, and on rank 0 IoError where the reporter cannot
  /// write.
  StopReason run();

  const RunState& state() const { return state_; }
  /// Iterations at the end of the run, those before a restart included.
  std::int64_t total_iterations() const { return end_.iteration; }
  /// Why run() returned corrupted, diverged, unreadable_data or bad_data, and what to do; the same
  /// on every rank.
  const std::string& diagnosis() const { return diagnosis_; }
  /// The newest checkpoint of this run, if one was written or restarted from.
  const std::optional<std::filesystem::path>& last_checkpoint() const {
    return checkpoints_.last();
  }

  /// Seconds of an iteration by phase, the backend waited for at the end of each.
  struct PhaseSeconds {
    double passes = 0.0;     ///< forward and backward of all micro-batches
    double reduction = 0.0;  ///< of gradients over ranks, as far as it is not hidden in the passes
    double update = 0.0;     ///< norm, AdamW, gathering of weights
  };
  /// One iteration, without reports, saves or stops. Fills `phases` when given, at the cost of
  /// waiting between them. Where train.verify finds wrong results, diagnosis() says so, and nothing
  /// is updated. Collective over all ranks.
  StepResult step(PhaseSeconds* phases = nullptr);
  /// One global batch of the training data forward alone. Collective over all ranks.
  void forward_only();
  const model::ParameterStore& parameters() const { return parameters_; }

 private:
  /// Opens a split with the samples that the whole run takes of it.
  std::unique_ptr<const data::Dataset> open(data::Split split);
  /// Opens the splits that the run evaluates.
  void open_evaluations();
  /// Loads weights and moments of the checkpoint that the run resumes from.
  void load();
  /// step(), watched with the limit that is learned from earlier ones.
  StepResult watched_step();
  /// The norm of the reduced gradient.
  double gradient_norm(double loss_scale);
  /// From the reduced gradient to new weights, or to none where it is not finite or the iteration a
  /// spike. All of the result but the losses, of which `loss` is the tokens'; `samples` is the
  /// global batch. Computes the norm unless it is known.
  StepResult update_weights(double loss, double loss_scale, std::int64_t samples,
                            std::optional<double> norm);
  /// Counts bad iterations in a row; `diverged` when they are too many, when no loss scale is left,
  /// or when a report is due and the weights are not finite.
  StopReason judge(const StepResult& result);
  /// Opens the range that a profiler records before the first `iteration` of it, and closes it
  /// after the last.
  void profile(std::int64_t iteration, bool begins);
  bool profiling_ = false;
  /// Starts to read the data of the batch after the next step, overlapped with that step.
  void start_prefetch();
  /// Waits for that. Returns the exit code of what is wrong, whose message is data_error_.
  ExitCode finish_prefetch();
  /// At a spike resumes from an earlier checkpoint with later data (train.spike.back), and saves
  /// that, so that a start from then on does the same. False where there is no checkpoint or no
  /// later data. Collective.
  bool rewind(const std::string& spike);
  /// Takes the progress and the loss scale of `state`, whose checkpoint is loaded, and the end of
  /// the run from there.
  void resume_with(const RunState& state);
  /// Passes over the data that train.skip leaves out before the next iteration.
  void skip_data_if_due();
  /// This rank's part of the next iteration's batch.
  data::Sampler next_batch() const;
  /// Makes the schedule fit `micro_batches`, which change while the batch ramps up.
  void schedule(std::int64_t micro_batches);
  /// Whether the last iteration came to a multiple of `every`.
  bool due(const std::optional<deck::Length>& every) const;
  /// Whether log.every asks for a report after `iteration`.
  bool reports_at(std::int64_t iteration) const;
  /// step(), recorded where log.trace says so.
  StepResult recorded_step();
  /// Writes the timeline of log.trace after the last iteration of a range, or, with `ends`, what is
  /// recorded of one.
  void report_timeline(bool ends);
  /// Adds an iteration to the interval and reports it where log.every says.
  void report(const StepResult& result);
  /// Reports the iterations that have not been reported. Collective.
  void report_interval();
  /// The use of GPUs since the last time, where log.gpu_every asks for it.
  void report_gpus_if_due();
  /// Warns of weights that are absurdly large; false where some are not finite.
  bool check_weights();
  /// A warning of the newest iteration, on the rank that reports.
  void warn(const std::string& message);
  /// Makes the diagnosis that begins with `what` happened. Collective.
  StopReason diverged(const std::string& what);
  /// Saves where checkpoint.every asks for it, after bad iterations once there is a good one.
  StopReason save_if_due();
  /// Starts a checkpoint in the background where the deck asks for it, unless the weights are not
  /// finite.
  StopReason start_save();
  /// The same for a local checkpoint.
  StopReason start_local();
  /// Takes a step of the checkpoint in flight, or with `wait` all of them.
  void advance_save(bool wait = false);
  /// Writes a checkpoint, unless the weights are not finite: then `diverged`.
  StopReason save();
  /// Between the batches of an evaluation, which may take longer than a job is given to stop:
  /// writes a checkpoint once a signal has asked for the stop.
  void save_if_signalled();
  /// Deletes the checkpoints that are not kept, unless the last iterations were bad.
  void delete_old_checkpoints();

  deck::Deck deck_;
  plan::Vocabulary vocabulary_;
  plan::RunPlan plan_;
  comm::Groups& groups_;
  device::Backend& backend_;
  report::Reporter* reporter_;
  TrainerOptions options_;
  RunState state_;
  deck::BatchSizes batches_;
  deck::Progress end_;            ///< of the run
  deck::Progress previous_ = {};  ///< before the last iteration
  data::Sampler sampler_;         ///< of batch.global, the largest batch
  optim::LearningRateSchedule learning_rate_;
  optim::WeightDecaySchedule weight_decay_;
  optim::LossScaler loss_scaler_;
  model::ParameterStore parameters_;
  optim::Optimizer optimizer_;
  RunCheckpoints checkpoints_;
  pipeline::StageSchedule schedule_;
  std::int64_t scheduled_;  ///< micro-batches of schedule_
  StageRunner runner_;
  std::unique_ptr<const data::Dataset> train_data_;
  TrainingLog log_;
  Evaluations evaluations_;
  std::optional<StepVerifier> verifier_;  ///< with train.verify
  StopConditions stops_;
  StepLimit step_limit_;
  data::BatchPrefetcher prefetcher_;
  std::string data_error_;  ///< of this rank
  Stopwatch since_data_check_;
  std::shared_ptr<comm::Watchdog> watchdog_ = comm::Watchdog::shared();
  bool save_due_ = false;  ///< checkpoint.every asked for a save that has not been made
  bool warned_of_weights_ = false;
  std::string diagnosis_;
};

}  // namespace trireme::train
