// The plan of a run: layers and memory of each rank, idle time of the pipeline. Pure: needs neither
// MPI nor a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
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
  std::string fp8;                   ///< which GEMMs are in FP8, in words; "" when none is to be
  std::string schedule;              ///< the deck's word for it
  /// Share of the time in which the stages idle, by the simulator, when the gradient of the input
  /// and that of the weights take as long as a forward each, 0 to 1.
  double bubble = 0.0;
  std::vector<StagePlan> stages;

  /// The stage whose ranks have the highest peak memory.
  const StagePlan& largest() const;
};

/// The memory of single stages, for a search that plans many layouts of a model: as plan_run()'s.
class StagePlanner {
 public:
  StagePlanner(const deck::Deck& deck, std::int64_t vocab);
  ~StagePlanner();

  /// A rank of `stage` with `layers` layers under the layout of `deck`, which may differ from the
  /// constructor's in `parallel`, `batch` and `recompute`; parallel.data must be resolved. More
  /// micro-batches than fill the pipeline do not change it.
  MemoryPlan stage(const deck::Deck& deck, int stage, std::int64_t layers) const;

 private:
  struct Model;
  std::unique_ptr<const Model> model_;
};

/// Plans a run; parallel.data must be resolved.
RunPlan plan_run(const deck::Deck& deck, std::int64_t vocab);

/// The plan as the table that `--plan` prints.
std::string to_text(const RunPlan& plan);

}  // namespace trireme::plan
