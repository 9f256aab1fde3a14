// Where a run starts from: a fresh model, its own newest checkpoint, or one that was named.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/file.hpp"
#include "comm/mpi/mpi_communicator.hpp"
#include "core/clock.hpp"
#include "deck/batch_sizes.hpp"
#include "deck/deck.hpp"
#include "train/startup/datasets.hpp"

namespace trireme::train {

/// The checkpoint to start from, if any, and what to tell the user about it.
struct RestartPoint {
  std::optional<std::filesystem::path> checkpoint;
  /// The newer local checkpoint to start from instead (checkpoint.local), its tensors left out.
  std::optional<checkpoint::Header> local;
  deck::Progress progress;  ///< of the checkpoint
  std::vector<std::string> notes;
};

/// The run folder's checkpoints.
std::filesystem::path checkpoint_folder(const deck::Deck& deck);

/// Decides where to start. `restart` is "latest" (the newest checkpoint of the run folder; else
/// checkpoint.load; else fresh), "never" (checkpoint.load or fresh; an old run folder is moved
/// aside to <output>.1, .2, ... once all else is right) or a path. Compares the checkpoint's deck
/// with this one: notes what changed, throws DeckError for what must not; where no run has trained
/// its weights yet (an imported model), only keys of the model must not. Throws DataError when the
/// checkpoint's run trained on other documents or tokens than this one's `training_data`
/// (identify_training_data(); what it does not know is not compared) although its deck names the
/// same data; where the deck names other data, the run warns. Throws UsageError for a path of
/// another folder while the run folder has checkpoints: they would be mistaken for those of the
/// run that starts there. Called by rank 0 alone, before the run folder is written.
RestartPoint find_restart(const deck::Deck& deck, const std::string& restart,
                          const TrainingData& training_data = {});

/// This run's folder on its node's disk; empty without checkpoint.local.
std::optional<std::filesystem::path> local_folder(const deck::Deck& deck);

/// Where `restart` is "latest", makes the run start from its local checkpoint if that is newer than
/// `point`, whole and of the same layout, with a note; deletes newer ones, which the run leaves. On
/// the other ranks `point` then has the local checkpoint, its progress and nothing else. Collective
/// over `world`; throws CollectiveError as find_restart().
void find_local_restart(const deck::Deck& deck, comm::MpiCommunicator& world,
                        const std::string& restart, const TrainingData& training_data,
                        RestartPoint& point);

/// Makes sure that the run never resumes from a checkpoint of its folder that is newer than
/// `point`, with a note when there are some. Called by rank 0 alone, with the folder locked, before
/// the logs are cut back to where `point` is.
void supersede_newer(const deck::Deck& deck, RestartPoint& point);

/// Throws DeckError, naming both values, when the checkpoint at `checkpoint` holds another model
/// than `deck` describes, such as one with other heads: tensors of the right shape do not show
/// that. Sequences of another length are another question to the same model.
void require_same_model(const deck::Deck& deck, const std::filesystem::path& checkpoint);

/// What find_restart() decides, without the training data: writes and moves nothing. A checkpoint
/// of Megatron-LM or DeepSpeed, which the run converts first, is not looked into.
RestartPoint check_restart(deck::Deck deck, const std::string& restart);

/// Throws IoError where a file has the path of the run folder `folder` or of a folder above it.
/// Writes nothing.
void require_possible_folder(const std::filesystem::path& folder);

/// Holds the run folder for one run at a time, where the file system has locks: its file .lock, and
/// the folder itself, which stays locked when the file is deleted.
class FolderLock {
 public:
  /// Makes `folder` where needed, and waits for up to 5 s while another run holds it. Throws
  /// IoError that names the folder.
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  /// False on file systems that have no locks, such as Lustre mounted without `flock`.
  bool holds() const { return holds_; }
  /// Throws IoError where the folder's path leads to another folder by now, or to another run's
  /// .lock: what this run writes there would meet the other's.
  void check() const;

 private:
  /// Locks `file`, waiting until `watch` shows 5 s; 0 or the reason.
  int acquire(int file, const Stopwatch& watch) const;
  void close();

  std::filesystem::path folder_;
  int file_ = -1, directory_ = -1;
  bool holds_ = true;
};

}  // namespace trireme::train
