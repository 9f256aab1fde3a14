// Silent data corruption: wrong results of a GPU, a host or a link, without an error
// (train.verify). Checks of a step's passes, and the bit flips that tests inject into them. And
// where a diverged model holds numbers that are not finite.
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
#include "core/tensor.hpp"
#include "data/dataset.hpp"
#include "deck/deck.hpp"
#include "device/backend.hpp"
#include "model/parameters/store.hpp"
#include "optim/optimizer.hpp"
#include "pipeline/schedule.hpp"
#include "report/reporter.hpp"
#include "train/stage_runner.hpp"

namespace trireme::train {

/// What train.verify.inject says: "gradients rank=1 iteration=5 bit=30 times=2".
struct BitFlip {
  /// Whose element is changed: a weight, before the passes; a gradient of a layer, when the passes
  /// have completed it; an activation that leaves a chunk of layers; or a reduced gradient, as a
  /// damaged message of the reduction.
  enum class Target { weights, gradients, activations, messages };
  Target target = Target::weights;
  int rank = 0;
  std::int64_t iteration = 1;
  int bit = 30;  ///< of the element; a smaller type's highest bit but one
  std::int64_t times =
      1;  ///< runs of the passes, from that iteration on; each flips the next lower bit
  std::int64_t element = 0;  ///< its number in the tensor

  /// Throws DeckError naming the key and what it takes.
  static BitFlip parse(const std::string& text);
  /// Flips the bit in `tensor`, which lies in the memory of `backend`.
  void apply(device::Backend& backend, const Tensor& tensor) const;
};

// What the passes of one step compute on this rank, observed while they run.

/// Observes results of this rank's passes at places whose order tells where a fault began:
/// activations and their gradients where they leave a chunk of layers, by micro-batch; the
/// gradients of each layer's matrices and of all other parameters before they are reduced over
/// ranks; and the reduced gradients that this rank owns.
///
/// The passes call it as their ParameterHooks; it forwards each call to the optimizer.
class PassObserver final : public model::ParameterHooks {
 public:
  /// Nothing; checksums of all results; or whether they are finite, and how large, for which they
  /// are copied to the host.
  enum class Mode { off, checksums, values };

  /// A batch has at most `micro_batches` on this rank. All must outlive this.
  PassObserver(device::Backend& backend, const model::ParameterStore& parameters,
               optim::Optimizer& optimizer, const comm::Groups& groups, std::int64_t micro_batches);

  /// Before the passes of a step: forgets what was observed. `flip` is applied in them, if any.
  void begin(Mode mode, const data::Sampler& sampler, std::int64_t consumed,
             const std::optional<BitFlip>& flip);
  /// After a pass through a chunk, which wrote `output`, or turned its gradient into `gradient`.
  void after_forward(const pipeline::Step& step, const Tensor& output);
  void after_backward(const pipeline::Step& step, const Tensor& gradient);
  /// Before and after the reduction of the gradients.
  void before_reduction();
  void after_reduction();

  void before_use(const model::Range& range, const model::Range& next) override {
    optimizer_.before_use(range, next);
  }
  void before_gradient(const model::Range& matrices) override {
    optimizer_.before_gradient(matrices);
  }
  void gradient_ready(const model::Range& matrices, bool complete) override;

  /// One checksum for each place, in Mode::checksums.
  std::vector<std::uint64_t> checksums();

  /// A place at which something is wrong.
  struct Fault {
    double order = 0.0;  ///< smaller where data flows from
    std::string text;    ///< "the gradient of layer 3", with the batch's samples where known
  };
  /// The first place where `a` and `b`, of two runs, differ; empty where none does.
  std::optional<Fault> first_difference(const std::vector<std::uint64_t>& a,
                                        const std::vector<std::uint64_t>& b) const;
  /// The first place with a value that is not finite, in Mode::values.
  std::optional<Fault> first_non_finite() const;
  /// The largest magnitude of a gradient of weights before the reduction, and whose it is.
  struct Largest {
    double value = 0.0;
    std::string text;
  };
  Largest largest_gradient() const;

 private:
  /// What the values at a place are like.
  struct Values {
    bool finite = true;
    double largest = 0.0;
  };
  std::size_t activation(const pipeline::Step& step) const;
  std::size_t gradient(const pipeline::Step& step) const { return activations_ + activation(step); }
  std::size_t layer(std::size_t index) const { return 2 * activations_ + index; }
  std::size_t common() const { return layer(layers_); }
  std::size_t reduced(std::size_t part) const { return common() + 1 + part; }
  std::size_t places() const { return reduced(optimizer_.owned_parts().size()); }

  void observe(std::size_t place, const Tensor& tensor);
  void flip(BitFlip::Target target, const Tensor& tensor);
  Fault fault_at(std::size_t place) const;
  /// The model's layer of the rank's layer `index`.
  int layer_number(std::size_t index) const;

  device::Backend& backend_;
  const model::ParameterStore& parameters_;
  optim::Optimizer& optimizer_;
  const comm::Groups& groups_;
  std::size_t chunks_, activations_, layers_;
  device::Buffer sums_;  ///< a checksum for each place, in the backend's memory
  std::vector<Values> values_;
  Mode mode_ = Mode::off;
  data::Sampler sampler_;
  std::int64_t consumed_ = 0;
  std::optional<BitFlip> flip_;
};

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

// Where a diverged model holds numbers that are not finite, or the largest ones.

/// The first parameter of the table that has a weight which is NaN or infinite on any rank; where
/// there is none, the first with such a gradient. In words: "the weight layers/0/mlp/up/weight[3,
/// 17] on rank 1 (node0) is nan; 1 of 26 parameters has such weights". "" where all numbers are
/// finite. Weights are looked at in both precisions; gradients are those that reduce_gradients()
/// left, of which this rank owns a shard. Copies both to the host in pieces. Collective over
/// `world`; the same text on every rank.
std::string find_non_finite(comm::MpiCommunicator& world, device::Backend& backend,
                            const model::ParameterStore& parameters,
                            const optim::Optimizer& optimizer);

/// As find_non_finite(), of the weights alone that passes read, which must be whole.
std::string find_non_finite(comm::MpiCommunicator& world, device::Backend& backend,
                            const model::ParameterStore& parameters);

/// The parameter with the largest magnitude of a weight: "-3e+18 in layers/0/mlp/up/weight on rank
/// 0 (host)". Collective over `world`; the same text on every rank.
std::string find_largest_weight(comm::MpiCommunicator& world, device::Backend& backend,
                                const model::ParameterStore& parameters,
                                const optim::Optimizer& optimizer);

}  // namespace trireme::train
