// Checkpoints: one HDF5 file of full logical tensors, written by all ranks concurrently,
// independent of the layout that wrote it. Saving one, at once or while training continues, and
// loading it. checkpoint/file.hpp describes the file.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/file.hpp"
#include "checkpoint/local/shard.hpp"
#include "comm/mpi/mpi_communicator.hpp"
#include "core/tensor.hpp"
#include "device/backend.hpp"
#include "grid/layout.hpp"

namespace trireme::model {
class ParameterStore;
}
namespace trireme::optim {
class Optimizer;
}

namespace trireme::checkpoint {

/// Writes a checkpoint and publishes it: writes `path`.part, syncs it, renames it to `path`, and
/// then names it in the file `latest` of the same folder. A kill at any instant leaves the
/// checkpoint that `latest` names intact. Deletes the .part files of killed runs in the folder,
/// which is created when absent. `attributes` gains `format_version`; attributes and deck of rank 0
/// are written. The pieces lie in the memory of `memory`, null for the host's.
///
/// `compression`, of deflate, is 1 to 9; 0: elements are stored as they are. Collective over
/// `ranks`, which wait for each other as long as a rank writes and its bytes progress, however
/// slowly. Every rank passes the same tensors in the same order, each element of
/// a tensor in a piece of exactly one owner. Throws, on every rank, IoError with the file, the rank
/// and the system's reason when the file cannot be written (the previous checkpoint stays),
/// InternalError naming the tensor when ownership is wrong.
void save(const std::filesystem::path& path, comm::MpiCommunicator& ranks,
          const Attributes& attributes, const std::string& deck,
          const std::vector<LocalTensor>& tensors, device::Backend* memory = nullptr,
          int compression = 0);

/// Tests before training that save() can write: creates the folder, deletes .part files, reserves
/// space for `count` checkpoints, writes the metadata of `tensors`, and writes and syncs a few
/// bytes on every rank. Leaves none of it. Collective over `ranks`; rank 0's `count` is used.
/// Throws IoError on every rank.
void preflight_save(const std::filesystem::path& path, comm::MpiCommunicator& ranks,
                    const std::string& deck, const std::vector<LocalTensor>& tensors,
                    int count = 1);

/// Fills the pieces of `tensors` from the file, written at any layout, and returns its header.
/// The file must have exactly these tensors in the top-level groups that they name ("model",
/// "optimizer"), with these shapes and types; groups that no tensor names are not read.
///
/// Collective over `ranks`; the owners' pieces cover each tensor once, as for save(), and any rank
/// may have replicas. Throws, on every rank, DataError naming the file and the tensor when it is
/// truncated, foreign, newer than this program, of another model, or a checksum does not match;
/// IoError when it cannot be read.
Header load(const std::filesystem::path& path, comm::MpiCommunicator& ranks,
            const std::vector<LocalTensor>& tensors, device::Backend* memory = nullptr);

/// Every logical tensor of a checkpoint with this rank's part of it: weights under model/, what the
/// optimizer keeps under optimizer/m/ and optimizer/v/. Views of the live buffers.
std::vector<LocalTensor> checkpoint_tensors(const model::ParameterStore& parameters,
                                            const optim::Optimizer& optimizer);

/// The weights alone, for programs that do not train: this rank's whole local parameters. The first
/// data rank owns.
std::vector<LocalTensor> weight_tensors(const model::ParameterStore& parameters,
                                        bool first_data_rank);

// ---- saving while training continues (checkpoint.async)

/// Copies what each rank owns into host memory, from which a thread of each rank computes checksums
/// and writes, as save() does; one save at a time. MPI is used by the main thread alone: the ranks
/// agree on each of the steps (checksums, metadata, elements, publishing) in advance(), between
/// iterations. A kill at any instant leaves the checkpoint that `latest` names intact.
class BackgroundSave {
 public:
  /// Allocates the host memory: the bytes that this rank owns of `tensors`, for start_local() with
  /// its `replicas`. `ranks` and `memory`, in which the tensors are, must outlive this. Throws as
  /// Backend::allocate_on_host().
  BackgroundSave(comm::MpiCommunicator& ranks, device::Backend& memory,
                 const std::vector<LocalTensor>& tensors, bool replicas = false);
  /// Stops the thread; the unfinished file remains when a save is in flight.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  /// Starts to copy `tensors`, those of the constructor, and to save them as save() does. Nothing
  /// may change them before finish_copies(). No other save may be in flight. Collective.
  void start(const std::filesystem::path& path, const Attributes& attributes,
             const std::string& deck, const std::vector<LocalTensor>& tensors, int compression = 0);
  /// As start(), to a shard of each rank on its node's disk instead, in `folder`; of the older ones
  /// the newest stays. With `partners`, the nodes of the ranks, each node then keeps a copy of
  /// another's shards; where copying fails the newest older one with copies stays. Collective.
  void start_local(const std::filesystem::path& folder, const ShardHeader& header,
                   const std::vector<LocalTensor>& tensors, const std::vector<int>& partners);
  /// Deletes the shards in `folder` of iterations after `iteration`, which a run resumes. No save
  /// may be in flight. Collective.
  void remove_newer_shards(const std::filesystem::path& folder, std::int64_t iteration);
  /// Makes the backend's later work wait for the copies. Call it before the tensors are changed.
  void finish_copies();
  /// Seconds for which that work has waited; 0 until advance() has seen the copies' end. On a GPU
  /// the time between two points of its stream, in which it has nothing else to do.
  double waited_seconds() const { return waited_seconds_; }

  bool in_flight() const { return step_ != Step::idle; }
  /// Whether all ranks have written their elements: the checkpoint may be published at any moment.
  /// Never while shards are copied to other nodes: they do not outlast the loss of a node.
  bool publishes() const { return step_ == Step::publishing; }
  /// Takes the next step when all ranks have completed the last one; does not wait for them to.
  /// Returns true when the checkpoint is published. Collective; throws, on every rank, as save().
  /// After an exception no save is in flight, and unfinished files and the shards of a checkpoint
  /// that is not complete are removed.
  bool advance();
  /// Waits until the checkpoint is published; calls `publishing` once it may be. Collective; throws
  /// as advance().
  void wait(const std::function<void()>& publishing = [] {});

 private:
  enum class Step { idle, copies, checksums, metadata, elements, publishing, shard, partners };

  /// Starts the copies of `tensors`, without replicas unless `replicas`.
  void start_copies(const std::vector<LocalTensor>& tensors, bool replicas);
  /// Runs `work` in the thread.
  void run(Step step, std::function<void()> work);
  void run_on_first_rank(Step step, std::function<void()> work);
  /// The next step, after one that all ranks have completed. Collective.
  void take_next_step();
  /// After the step `failed`: deletes unfinished files, the shards of this iteration where another
  /// rank lacks its own, or older ones. No MPI.
  void clean_up(Step failed);
  void finish_shard();
  void remove_older_shards();
  void compute_checksums();
  void reserve_and_describe();
  void write_elements();
  void compress_and_publish();
  /// What the thread calls after each few MiB.
  void note_progress();

  comm::MpiCommunicator& ranks_;
  device::Backend& memory_;
  device::Buffer buffer_;                                   ///< of the copies
  std::unique_ptr<device::Event> wait_begins_, wait_ends_;  ///< of finish_copies()
  bool waits_ = false;                                      ///< both are recorded
  double waited_seconds_ = 0.0;

  Step step_ = Step::idle;
  std::filesystem::path path_, unfinished_;
  Attributes attributes_;
  std::string deck_;
  int compression_ = 0;
  std::vector<LocalTensor> copies_;   ///< this rank's own pieces
  std::optional<ShardHeader> shard_;  ///< with start_local()
  std::vector<int> partners_;
  std::int64_t copied_ = -1;  ///< the newest iteration with copies on other nodes; -1 without
  std::unique_ptr<comm::MpiCommunicator> thread_ranks_;  ///< for the thread's messages
  std::vector<std::uint64_t> checksums_;
  std::vector<std::int64_t> offsets_;  ///< of the elements in the file

  std::thread thread_;
  std::exception_ptr error_;  ///< of the thread
  std::atomic<bool> done_ = false, stop_ = false;
  std::atomic<std::int64_t> progress_ = 0;
};

}  // namespace trireme::checkpoint
