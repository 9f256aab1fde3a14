// The checkpoints that a run writes, which of them it keeps, and how many there are at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/file.hpp"
#include "comm/mpi/groups.hpp"
#include "core/clock.hpp"
#include "deck/deck.hpp"
#include "device/timers.hpp"
#include "optim/optimizer.hpp"
#include "report/reporter.hpp"
#include "train/run_state.hpp"
#include "train/startup/startup.hpp"

namespace trireme::train {

/// Whether checkpoint.keep_every keeps the checkpoint of `iteration`.
bool is_milestone(const deck::Deck& deck, std::int64_t iteration);

/// How many more checkpoints than those in its folder now a run from `now` to `end` has at the same
/// time, at most 64: reserving their space takes seconds. checkpoint.keep deletes an old one once
/// the new one exists. 1 where all are kept, which users have to move away; milestones to come are
/// not counted.
int max_new_checkpoints(const deck::Deck& deck, const deck::Progress& now,
                        const deck::Progress& end, const std::vector<checkpoint::Step>& steps);

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
  InFlight in_flight_;
  std::function<void()> published_ = [] {};
  bool shared_failed_ = false;   ///< the last shared one of the background saves
  bool local_failed_ = false;    ///< the last local one
  bool left_out_local_ = false;  ///< a local checkpoint, because another one was in flight
};

}  // namespace trireme::train
