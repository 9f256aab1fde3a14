// How a run starts: the datasets that it trains and evaluates on, where it starts from (a fresh
// model, its own newest checkpoint, or one that was named), what it computes on, and what all
// ranks do or say as one.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/file.hpp"
#include "comm/communicator.hpp"
#include "comm/mpi/mpi_communicator.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "data/dataset.hpp"
#include "data/indexed_dataset.hpp"
#include "deck/deck.hpp"
#include "device/backend.hpp"
#include "plan/run_plan.hpp"
#include "plan/setup.hpp"

namespace trireme::train {

/// Watches work on data, which takes as long as there is data, while the result lives: as
/// MpiCommunicator::work(), but only what takes no CPU time for ten minutes ends the job.
comm::WatchedWork preparation(const comm::MpiCommunicator& world, const char* what);

/// Opens `split` of the deck's data for `samples` samples (absent: one epoch) of the kind that the
/// model's family trains on. Collective over `world`, whose rank 0 builds the sample index; a rank
/// that throws does not reach the barrier, so the caller must end the others. Throws as
/// data::open_gpt_blend() and data::open_bert_split().
std::unique_ptr<const data::Dataset> open_dataset(const deck::Deck& deck,
                                                  const plan::Vocabulary& vocabulary,
                                                  data::Split split,
                                                  std::optional<std::int64_t> samples,
                                                  comm::Communicator& world);

/// Throws IoError that names the key (data.train, data.valid, data.test) and the file where a
/// dataset cannot be opened.
void require_datasets(const deck::Deck& deck, const plan::Vocabulary& vocabulary);

/// As require_datasets(); throws DataError or DeckError when a split that the run needs cannot give
/// a sample. Otherwise returns one line for each split that is used: documents, tokens, epochs.
std::string describe_data(const deck::Deck& deck, const plan::Vocabulary& vocabulary);

/// One split of the deck's data.
struct SplitData {
  data::BlendSummary summary;
  std::vector<std::string> names;     ///< of the datasets or record files
  std::vector<std::int64_t> samples;  ///< that the run takes of each of summary.datasets
};

/// What a run from the start takes of a split, and what train.skip passes over where the whole
/// epochs do not hold that, too: as a run opens it. Throws as describe_data().
SplitData summarize_data(const deck::Deck& deck, const plan::Vocabulary& vocabulary,
                         data::Split split);

/// Why the training split has fewer than `samples` samples, or "": data.index_files and datasets
/// without weights have a fixed number. The same on all ranks. Collective over `world`; throws
/// CollectiveError where the data cannot be read.
std::string lack_of_samples(const deck::Deck& deck, const plan::Vocabulary& vocabulary,
                            std::int64_t samples, comm::MpiCommunicator& world);

/// Compares each dataset that the run reads with the tokenizer and the vocabulary of the deck: by
/// its PREFIX.json; without one, by the ids that `scan` meets. `progress` gets meters, null for
/// none. Returns notes for the user, a line each. Throws DeckError, naming the key and both
/// tokenizers, for a dataset of another tokenizer; DataError for ids outside the vocabulary and
/// damaged files; IoError.
std::vector<std::string> check_datasets(const deck::Deck& deck, const plan::Vocabulary& vocabulary,
                                        data::TokenScan scan, std::FILE* progress = nullptr);

/// What tells the training data of a run from other data.
struct TrainingData {
  std::string documents;  ///< data::identify_documents(); "": not known
  /// Hashes of the documents' tokens: "sample H H ..." with one for each dataset, and "; all H H
  /// ..." where all tokens were read; "": not known.
  std::string tokens;
  std::vector<std::string> files;  ///< the .bin files that the hashes are of
  std::string tokenizer = {};      ///< to_text() of the deck's; "": it names none
};

/// That of the documents that the run trains on, for the checkpoints; `scan` says how many of their
/// tokens are read, `progress` as in check_datasets(). Throws as describe_data().
TrainingData identify_training_data(const deck::Deck& deck, const plan::Vocabulary& vocabulary,
                                    data::TokenScan scan, std::FILE* progress = nullptr);

/// The first of `now.files` whose tokens are others than those of `before`, a TrainingData's tokens
/// of the same documents; "data.train" where the hashes do not tell the file; "" when none is.
std::string changed_file(const std::string& before, const TrainingData& now);

// ---- where a run starts from

/// The checkpoint to start from, if any, and what to tell the user about it.
struct RestartPoint {
  std::optional<std::filesystem::path> checkpoint;
  /// The newer local checkpoint to start from instead (checkpoint.local), its tensors left out.
  std::optional<checkpoint::Header> local;
  deck::Progress progress;  ///< of the checkpoint
  std::vector<std::string> notes;
};

/// The deck of the run that wrote the checkpoint at `path`. Throws DeckError.
deck::Deck deck_of(const checkpoint::Header& header, const std::filesystem::path& path);

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
/// `point`, whole and has the same parts on each rank, with a note. Notes that newer local
/// checkpoints are deleted: after the first save after which the run trains on, or here unless
/// `restart` is "latest". On the other ranks `point` then has the local checkpoint, its progress
/// and nothing else. Collective over `world`; throws CollectiveError as find_restart().
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

/// Why the tokenizer `now` may give other ids than the one that the checkpoint `header` was trained
/// with: names both; "" where they are the same, or the checkpoint does not know its own.
std::string tokenizer_problem(const checkpoint::Header& header,
                              const tokenizer::TokenizerIdentity& now);

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

// ---- what a run computes on

/// What `run.device: auto` stands for on this machine: cuda when this build has the CUDA backend
/// and there is a GPU.
deck::Device automatic_device();

/// What a rank computes and communicates with. The groups must be gone before the backend, whose
/// memory they use.
struct Devices {
  std::unique_ptr<device::Backend> backend;
  comm::Groups groups;
  std::string description;  ///< "2 threads a rank, host backend", for rank 0's introduction
};

/// The deck's device for every rank: host threads, or the GPU whose number is the rank's among
/// those of its node; and the groups of the deck's layout, over MPI or NCCL. Collective over
/// `world`. GPUs choose the kernels of GEMMs by `choice`; what they have timed is kept for later
/// starts. Throws Error (exit 1) saying what is missing: GPUs, NCCL.
Devices make_devices(const deck::Deck& deck, std::unique_ptr<comm::MpiCommunicator> world,
                     device::GemmChoice choice = device::GemmChoice::timed);

/// The memory that a run of `deck` finds on this machine: its smallest GPU's, or what its host has
/// free; nothing where it has no GPU.
std::optional<plan::AvailableMemory> memory_here(const deck::Deck& deck);

/// Throws CollectiveError (exit 1) unless each rank's GPU has room for what the plan of `deck` says
/// that it needs, or each host for what its ranks need together: names the rank and host, the
/// largest purpose and plan::suggestions(). Collective over `world`.
void require_memory(const deck::Deck& deck, std::int64_t vocab, const device::Backend& backend,
                    const comm::Groups& groups);

// ---- what all ranks do or say as one: rank 0 decides, or one error is thrown by all

/// An error that every rank throws alike: one of them prints it, all return its code.
class CollectiveError : public Error {
 public:
  using Error::Error;
};

/// `text` of rank 0 on every rank. Collective over `world`.
std::string broadcast_text(comm::MpiCommunicator& world, std::string text);

/// Runs `work` on rank 0 and returns its text on every rank. What it throws becomes a
/// CollectiveError with the same message and code on every rank. Collective over `world`.
std::string on_rank_zero(comm::MpiCommunicator& world, const std::function<std::string()>& work);

/// Runs `work`, which throws the same IoError, DataError, DeckError or UsageError on every rank,
/// and throws that as a CollectiveError: one rank prints it.
void throw_collectively(const std::function<void()>& work);

/// The `problem` of the first rank that has one, with its rank and host, and how many more there
/// are; "" where none has. The same on all ranks. Collective over `world`.
std::string first_problem(comm::MpiCommunicator& world, const std::string& problem);

/// Throws CollectiveError with `code` on all ranks when the `problem` of some is not empty: the
/// first of these, with its rank and host, and how many more there are. Collective over `world`.
void refuse(comm::MpiCommunicator& world, ExitCode code, const std::string& problem);

// ---- from the command line to a run that can start: the same on every rank, or one error for all,
// which names the first rank that has a problem, its host, and the way out

/// All ranks run one build of the program: others would not speak with each other. Exit 1.
/// Collective, before anything else is.
void check_same_build(comm::MpiCommunicator& world);

/// What a rank's command line makes it do.
struct StartInfo {
  bool runs = true;   ///< false: it answers a question (--check), or fails
  int exit_code = 0;  ///< of its error
  std::string error = {};
};

/// Either all ranks run or none does; a rank that leaves would keep the others waiting. Throws
/// where that is not so, and where a rank other than 0 alone has an error: with the code of the
/// first error, else 2. Rank 0 says its own error when the others leave as well. Collective, once
/// builds agree.
void check_same_start(comm::MpiCommunicator& world, const StartInfo& info);

/// All ranks were started with the overrides of rank 0, and see the deck that it sees if they see
/// one. Exit 78. Collective.
void check_same_deck(comm::MpiCommunicator& world, const std::string& path,
                     const std::vector<std::string>& overrides);

/// Every rank has a GPU, all of one kind unless run.mixed_gpus; and NCCL need not use TCP sockets
/// between nodes that have InfiniBand. Exit 1. Collective; for run.device = cuda.
void check_gpus(comm::MpiCommunicator& world, const deck::Deck& deck);

/// All ranks see what rank 0 writes in `folder`, which exists on its host. Exit 74. Collective.
void check_shared_folder(comm::MpiCommunicator& world, const std::string& folder);

/// A deck checked against the number of ranks, with its vocabulary.
struct PreparedDeck {
  deck::Deck deck;
  plan::Vocabulary vocabulary;
};

/// Loads and checks the deck and the tokenizer on rank 0, and resolves the layout by `resolve`
/// (which gets the deck and the number of ranks), after check_same_deck(). Without `need_data` a
/// deck need not name its data. Collective; throws CollectiveError.
PreparedDeck prepare_deck(comm::MpiCommunicator& world, const std::string& path,
                          const std::vector<std::string>& overrides,
                          const std::function<void(deck::Deck&, std::int64_t)>& resolve,
                          bool need_data = true);

}  // namespace trireme::train
