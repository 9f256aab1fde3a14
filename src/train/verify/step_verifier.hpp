// Silent data corruption: wrong results of a GPU, a host or a link, without an error
// (train.verify).
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/mpi/mpi_communicator.hpp"
#include "deck/deck.hpp"
#include "device/backend.hpp"
#include "model/parameters/store.hpp"
#include "optim/optimizer.hpp"
#include "report/reporter.hpp"
#include "train/stage_runner.hpp"
#include "train/verify/pass_observer.hpp"

namespace trireme::train {

/// The file of the run folder that names hosts with wrong results, one a line: --supervise and job
/// scripts leave them out.
std::filesystem::path suspect_hosts_file(const std::string& run_folder);

/// Runs the passes of a step again and compares all bits (train.verify.step_every); compares the
/// replicas of weights (train.verify.weights_every); tells where a gradient that is not finite, or
/// a spike of its norm, comes from. All ranks have one and call it together.
class StepVerifier {
 public:
  /// Replaces the optimizer as the ParameterHooks of the runner's passes. `reporter` is null but
  /// on rank 0. All must outlive this. Throws DeckError for train.verify.inject. Collective.
  StepVerifier(const deck::Deck& deck, comm::Groups& groups, device::Backend& backend,
               const model::ParameterStore& parameters, optim::Optimizer& optimizer,
               StageRunner& runner, report::Reporter* reporter);

  PassObserver& observer() { return observer_; }

  /// The step under way.
  struct Step {
    std::int64_t iteration = 0;  ///< that it completes
    data::Sampler batch;
    std::int64_t first_sample = 0;
  };
  /// Zeroes the gradients, runs the passes of a step and reduces the gradients.
  using Passes = std::function<LossSum()>;
  /// The norm of the reduced gradient.
  using Norm = std::function<double()>;

  /// What passes() found.
  struct Result {
    LossSum loss;
    double gradient_norm = 0.0;
    std::string problem;  ///< what stops the run: wrong results; "" for none
  };
  /// Runs `passes` once, where train.verify.step_every asks for it twice. Results that differ are
  /// computed a third time: where two of the three agree on every rank they are used, with a
  /// warning, once in a run. Where the norm is not finite or a spike, runs them again to tell where
  /// it comes from. `searches_scale`: a norm that is not finite only lowers the loss scale.
  /// Collective.
  Result run(const Step& step, bool searches_scale, const Passes& passes, const Norm& norm);

  /// Compares the replicas of the weights where train.verify.weights_every asks for it in
  /// `iteration`, or where `always`: before the update, so that no gradient of wrong weights is
  /// applied. Returns what stops the run, "" for nothing. Collective.
  std::string compare_weights(std::int64_t iteration, bool always = false);

 private:
  LossSum observed(PassObserver::Mode mode, const Step& step, const Passes& passes);
  /// The bit flip of train.verify.inject for this run of the passes of `iteration`; counts it.
  std::optional<BitFlip> flip_due(std::int64_t iteration);
  /// run() of a step whose passes run at least twice.
  std::string confirm(const Step& step, const Passes& passes, LossSum& loss);
  /// Warns where a norm that is not finite, or a spike, comes from, or that it was not `repeated`.
  void explain(const Step& step, double norm, bool repeated);
  bool is_spike(double norm);
  /// The faults of the ranks at which they began, with rank, host and GPU; the same on every rank.
  std::string describe(const std::optional<PassObserver::Fault>& fault, bool suspect);
  /// A checksum of each parameter of which this rank holds a replica; 0 for others.
  std::vector<std::uint64_t> weight_sums();
  /// The replica that differs, in words; "" where all agree. Its host is a `suspect`. Collective.
  std::string find_different_replica(bool suspect);
  void note_suspects(const std::vector<std::string>& hosts);
  void warn(std::int64_t iteration, const std::string& message);

  const deck::Deck& deck_;
  comm::Groups& groups_;
  device::Backend& backend_;
  const model::ParameterStore& parameters_;
  optim::Optimizer& optimizer_;
  report::Reporter* reporter_;
  PassObserver observer_;
  std::unique_ptr<comm::MpiCommunicator> stage_;  ///< the ranks of this pipeline stage
  std::string identity_;                          ///< "rank 1 (node0, GPU 0000:3B:00.0)"
  device::Buffer sums_;
  std::optional<BitFlip> flip_;
  int mismatches_ = 0;
  std::deque<double> norms_;  ///< of the newest steps, finite ones
};

}  // namespace trireme::train
