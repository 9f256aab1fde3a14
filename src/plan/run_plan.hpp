// The plan of a run: layers and memory of each rank, idle time of the pipeline; and whether it
// fits. Pure: needs neither MPI nor a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "grid/layout.hpp"

namespace trireme::plan {

/// Bytes of one rank by purpose.
struct MemoryPlan {
  std::size_t weights = 0;
  std::size_t gradients = 0;
  std::size_t optimizer = 0;
  std::size_t activations = 0;
  std::size_t workspace = 0;
  std::size_t communication = 0;  ///< gradients received from and sent to other stages
  std::size_t libraries = 0;      ///< MPI, OpenBLAS, HDF5 and the program itself, as measured
  /// Page-locked host memory of a GPU's rank for offloaded activations and for the copies of
  /// checkpoint.async. Not in total(); on the host backend the former are part of the activations,
  /// the latter of the optimizer.
  std::size_t host = 0;

  std::size_t total() const {
    return weights + gradients + optimizer + activations + workspace + communication + libraries;
  }
};

/// A pipeline stage, whose ranks have equal plans.
struct StagePlan {
  std::vector<grid::LayerRange> chunks;  ///< its layers
  std::int64_t parameters = 0;           ///< elements that each rank holds
  int slots = 0;                         ///< micro-batches alive together, each in one chunk
  MemoryPlan memory;
};

/// The whole run.
struct RunPlan {
  grid::Layout layout;
  std::int64_t parameters = 0;  ///< of the logical model
  std::int64_t parameters_without_embeddings = 0;
  std::int64_t iterations = 0;
  std::int64_t tokens_per_step = 0;  ///< with the largest batch
  int micro_batches = 0;             ///< of the largest batch on each data rank
  std::string rampup;                ///< how the batch grows, in words; "" when it does not
  std::string fp8;                   ///< which GEMMs are in FP8, in words; "" when none is
  std::string schedule;              ///< the deck's word for it
  /// Share of the time in which the stages idle, by the simulator, when the gradient of the input
  /// and that of the weights take as long as a forward each, 0 to 1.
  double bubble = 0.0;
  /// The host's memory includes copies that a run makes only where it is free: checkpoint.async is
  /// not set.
  bool copies_where_free = false;
  std::vector<StagePlan> stages;

  /// The stage whose ranks have the highest peak memory.
  const StagePlan& largest() const;
};

/// Ranks that a plan takes to be on one node unless it is told: those reach each other's GPUs.
inline constexpr int kNodeRanks = 8;

/// The memory of single stages, for a search that plans many layouts of a model: as plan_run()'s.
class StagePlanner {
 public:
  StagePlanner(const deck::Deck& deck, std::int64_t vocab, int node_ranks = kNodeRanks);
  ~StagePlanner();

  /// A rank of `stage` with `layers` layers under the layout of `deck`, which may differ from the
  /// constructor's in `parallel`, `batch` and `recompute`; parallel.data must be resolved. More
  /// micro-batches than fill the pipeline do not change it.
  MemoryPlan stage(const deck::Deck& deck, int stage, std::int64_t layers) const;

 private:
  struct Model;
  std::unique_ptr<const Model> model_;
};

/// Plans a run with `node_ranks` on each node; parallel.data must be resolved.
RunPlan plan_run(const deck::Deck& deck, std::int64_t vocab, int node_ranks = kNodeRanks);

/// The plan as the table that `--plan` prints.
std::string to_text(const RunPlan& plan);

// Whether a run fits in the available memory, and changes of the deck with which it does. Pure.

/// Memory that a run may use.
struct AvailableMemory {
  std::size_t bytes = 0;  ///< of each rank's GPU; or of the host that `ranks` ranks share
  std::string what;       ///< "that each GPU has (--memory)", after the bytes
};

/// Whether a run fits, and the reason.
struct Verdict {
  std::optional<bool> fits;  ///< unset where no memory is known
  std::string text;          ///< without a line end
};

/// Compares the plan of `deck`, whose parallel.data is resolved, with `available`: on GPUs the rank
/// with the highest peak memory with one GPU; on the host all ranks, or the `ranks_per_host` with
/// the highest, together. Where it does not fit, the text has the largest purpose and the
/// suggestions of suggestions(). Without `available` the text says what is needed and how to
/// compare it.
Verdict judge(const deck::Deck& deck, std::int64_t vocab, const RunPlan& plan,
              const std::optional<AvailableMemory>& available,
              std::optional<std::int64_t> ranks_per_host = std::nullopt);

/// Why a GPU of `total` bytes, of which `free` are free after the libraries were loaded, has no
/// room for a rank that needs `mine`, with suggestions; "" when it has.
std::string gpu_memory_problem(const deck::Deck& deck, std::int64_t vocab, const MemoryPlan& mine,
                               std::size_t free, std::size_t total);

/// Why a host with `available` bytes has no room for its `ranks` ranks, which need `needed` bytes
/// together, with suggestions; "" when it has.
std::string host_memory_problem(const deck::Deck& deck, std::int64_t vocab, const RunPlan& plan,
                                std::size_t ranks, std::size_t needed, std::size_t available);

/// Bytes that the `ranks` ranks with the highest peak memory need together, libraries included.
std::size_t bytes_of_ranks(const RunPlan& plan, std::int64_t ranks);

/// "the optimizer state takes 90.5 GiB": the largest purpose of a plan.
std::string largest_purpose(const MemoryPlan& memory);

/// "80GiB", "80 GB", "81920M", "1.5T": bytes; letters without i and B are powers of 1024, as in
/// Slurm. Throws UsageError that begins with `option`.
std::size_t parse_memory(const std::string& option, const std::string& text);

/// A change of a deck, as overrides of the command line, with which a run fits.
struct Suggestion {
  std::vector<std::string> overrides;  ///< "recompute.granularity=full"
  std::size_t bytes = 0;  ///< peak memory of the rank with the highest, without libraries
};

/// Peak memory of the rank with the highest, without libraries.
std::size_t needed_bytes(const deck::Deck& deck, std::int64_t vocab);

/// The mildest change of each kind after which no rank needs more than `free` bytes: of
/// recomputation, of the ZeRO stage, of the micro-batch. If none of them suffices, all together,
/// with the largest micro-batch that fits; nothing when none does. Changes that the deck's
/// rules forbid are left out. parallel.data must be resolved; for free bytes of a GPU.
std::vector<Suggestion> suggestions(const deck::Deck& deck, std::int64_t vocab, std::size_t free);

/// The same in words: "recompute.granularity=full (24.5 GiB) or batch.micro=4 (31.0 GiB) would
/// fit".
std::string to_text(const std::vector<Suggestion>& suggestions);

}  // namespace trireme::plan
