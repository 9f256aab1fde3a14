#include "train/verify/step_verifier.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>

#include "core/files.hpp"
#include "core/system/process.hpp"
#include "plan/setup.hpp"

namespace trireme::train {
namespace {

constexpr double kNowhere = std::numeric_limits<double>::infinity();

/// "rank 1 (node0)", on a GPU with its PCI bus. Collective over the world.
std::string identity(const deck::Deck& deck, const comm::MpiCommunicator& world) {
  const int local = comm::node_local_rank(world);
  if (deck.run.device != deck::Device::cuda)
    return fmt::format("rank {} ({})", world.rank(), host_name());
  const device::Gpu gpu = device::visible_gpus().at(static_cast<std::size_t>(local));
  return fmt::format("rank {} ({}, {} {})", world.rank(), host_name(), gpu.name, gpu.bus_id);
}

bool is_due(const std::optional<std::int64_t>& every, std::int64_t iteration) {
  return every && iteration % *every == 0;
}

}  // namespace

std::filesystem::path suspect_hosts_file(const std::string& run_folder) {
  return std::filesystem::path(run_folder) / "suspect-hosts";
}

StepVerifier::StepVerifier(const deck::Deck& deck, comm::Groups& groups, device::Backend& backend,
                           const model::ParameterStore& parameters, optim::Optimizer& optimizer,
                           StageRunner& runner, report::Reporter* reporter)
    : deck_(deck),
      groups_(groups),
      backend_(backend),
      parameters_(parameters),
      optimizer_(optimizer),
      reporter_(reporter),
      observer_(backend, parameters, optimizer, groups, plan::micro_batches(deck)),
      stage_(groups.world->split(groups.place.pipeline, groups.world->rank(), "replicas")),
      identity_(identity(deck, *groups.world)),
      sums_(backend.allocate(parameters.placement().parameters.size() * sizeof(std::uint64_t),
                             "checksums (train.verify)")) {
  if (deck.train.verify.inject) flip_ = BitFlip::parse(*deck.train.verify.inject);
  runner.set_observer(&observer_);
}

// ---- steps

std::optional<BitFlip> StepVerifier::flip_due(std::int64_t iteration) {
  if (!flip_ || flip_->rank != groups_.world->rank() || iteration < flip_->iteration ||
      flip_->times == 0)
    return std::nullopt;
  --flip_->times;
  const BitFlip flip = *flip_;
  flip_->bit = std::max(0, flip_->bit - 1);  // wrong in another way each time
  return flip;
}

LossSum StepVerifier::observed(PassObserver::Mode mode, const Step& step, const Passes& passes) {
  const std::optional<BitFlip> flip = flip_due(step.iteration);
  if (flip && flip->target == BitFlip::Target::weights)
    flip->apply(backend_,
                slice(parameters_.weight_buffer(), parameters_.placement().parameters.front()));
  observer_.begin(mode, step.batch, step.first_sample, flip);
  const LossSum loss = passes();
  observer_.begin(PassObserver::Mode::off, step.batch, step.first_sample, {});
  return loss;
}

StepVerifier::Result StepVerifier::run(const Step& step, bool searches_scale, const Passes& passes,
                                       const Norm& norm) {
  Result result;
  if (is_due(deck_.train.verify.step_every, step.iteration))
    result.problem = confirm(step, passes, result.loss);
  else
    result.loss = observed(PassObserver::Mode::off, step, passes);
  result.gradient_norm = norm();
  const bool finite = std::isfinite(result.gradient_norm);
  if (!result.problem.empty() || !deck_.train.verify.step_every) return result;
  if ((finite || searches_scale) && !is_spike(result.gradient_norm)) return result;
  const double before = result.gradient_norm;
  result.loss = observed(PassObserver::Mode::values, step, passes);
  result.gradient_norm = norm();
  const bool repeated =
      before == result.gradient_norm || (!finite && !std::isfinite(result.gradient_norm));
  explain(step, before, repeated);
  return result;
}

std::string StepVerifier::confirm(const Step& step, const Passes& passes, LossSum& loss) {
  std::vector<std::vector<std::uint64_t>> runs;
  const auto run = [&] {
    loss = observed(PassObserver::Mode::checksums, step, passes);
    return observer_.checksums();
  };
  const auto agree = [&](std::size_t a, std::size_t b) {
    return groups_.world->all_reduce(runs[a] != runs[b], comm::Reduce::max) == 0.0;
  };
  runs.push_back(run());
  runs.push_back(run());
  if (agree(0, 1)) return "";
  const auto fault = observer_.first_difference(runs[0], runs[1]);
  runs.push_back(run());
  const bool transient = agree(1, 2) || agree(0, 2);
  const bool stops = !transient || ++mismatches_ > 1;
  const std::string message = fmt::format(
      "silent data corruption: two runs of the passes of iteration {} differ, first in {}",
      step.iteration, describe(fault, stops));
  if (!stops) {
    warn(step.iteration, message + "; a third run agrees with one of them, and is used");
    return "";
  }
  return message + (transient ? "; it is not the first time in this run" : "; so does a third run");
}

bool StepVerifier::is_spike(double norm) {
  constexpr std::size_t kNeeded = 8, kRemembered = 64;
  constexpr double kFactor = 8.0;
  if (!std::isfinite(norm)) return false;
  std::vector<double> sorted(norms_.begin(), norms_.end());
  std::sort(sorted.begin(), sorted.end());
  const bool spike = sorted.size() >= kNeeded && norm > kFactor * sorted[sorted.size() / 2];
  if (norms_.size() == kRemembered) norms_.pop_front();
  norms_.push_back(norm);
  return spike;
}

void StepVerifier::explain(const Step& step, double norm, bool repeated) {
  const std::string what = std::isfinite(norm)
                               ? fmt::format("the gradient norm jumped to {:.4g}", norm)
                               : std::string("the gradient is not finite");
  const std::string samples = fmt::format("samples {} to {}", step.first_sample,
                                          step.first_sample + step.batch.global_batch - 1);
  if (!repeated) {
    warn(step.iteration,
         fmt::format("silent data corruption: {} in iteration {}, but not in a second run of its "
                     "passes, which is used; the rank is not known",
                     what, step.iteration));
    return;
  }
  if (!std::isfinite(norm)) {
    warn(step.iteration, fmt::format("{} in iteration {} ({}), first in {}", what, step.iteration,
                                     samples, describe(observer_.first_non_finite(), false)));
    return;
  }
  const PassObserver::Largest largest = observer_.largest_gradient();
  const bool mine = groups_.world->all_reduce(largest.value, comm::Reduce::max) == largest.value;
  warn(step.iteration,
       fmt::format(
           "{} in iteration {} ({}): the largest is {:.4g} in {}", what, step.iteration, samples,
           groups_.world->all_reduce(largest.value, comm::Reduce::max),
           describe(mine ? std::optional<PassObserver::Fault>({0.0, largest.text}) : std::nullopt,
                    false)));
}

std::string StepVerifier::describe(const std::optional<PassObserver::Fault>& fault, bool suspect) {
  const double mine = fault ? fault->order : kNowhere;
  const double first = groups_.world->all_reduce(mine, comm::Reduce::min);
  const bool is_here = fault && mine == first;
  const std::vector<std::string> texts = groups_.world->all_gather_text(
      is_here ? fmt::format("{} on {}", fault->text, identity_) : "");
  const std::vector<std::string> hosts =
      groups_.world->all_gather_text(is_here && suspect ? host_name() : "");
  std::string text;
  for (const std::string& each : texts)
    if (!each.empty()) text += (text.empty() ? "" : ", and ") + each;
  note_suspects(hosts);
  return text.empty() ? "no result that is observed" : text;
}

// ---- replicas of weights

std::vector<std::uint64_t> StepVerifier::weight_sums() {
  const model::Placement& placement = parameters_.placement();
  const model::ParameterBuffer& weights = parameters_.weight_buffer();
  const auto count = static_cast<std::int64_t>(placement.parameters.size());
  backend_.zero({sums_.get(), DType::f64, {count}});
  optimizer_.before_use({0, weights.is_sharded() ? placement.common_size : placement.size}, {});
  for (std::int64_t i = 0; i < count; ++i) {
    const model::LocalParameter& local = placement.parameters[static_cast<std::size_t>(i)];
    // Sharded matrices have no replicas.
    if (weights.is_sharded() && local.offset >= placement.common_size) continue;
    const Tensor tensor = slice(weights, local);
    backend_.checksum(
        {.x = tensor.view({tensor.size()}), .out = static_cast<std::uint64_t*>(sums_.get()) + i});
  }
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(count));
  backend_.download(sums.data(), sums_.get(), sums.size() * sizeof sums[0]);
  return sums;
}

std::string StepVerifier::find_different_replica(bool suspect) {
  const std::vector<std::uint64_t> own = weight_sums();
  const std::size_t count = own.size();
  const auto ranks = static_cast<std::size_t>(stage_->size());
  std::vector<std::uint64_t> all(ranks * count);
  std::copy(own.begin(), own.end(),
            all.begin() + stage_->rank() * static_cast<std::ptrdiff_t>(count));
  stage_->all_gather(all.data(), count, DType::f64);  // moves bits
  const auto tensors = static_cast<double>(groups_.place.tensor);
  std::vector<double> tensor_of(ranks);
  tensor_of[static_cast<std::size_t>(stage_->rank())] = tensors;
  stage_->all_gather(tensor_of.data(), 1, DType::f64);

  const auto mine = static_cast<std::size_t>(stage_->rank());
  std::optional<PassObserver::Fault> fault;
  for (std::size_t i = 0; i < count && !fault; ++i) {
    const model::LocalParameter& local = parameters_.placement().parameters[i];
    const bool everywhere = local.parameter->sharding == model::TensorSharding::none;
    std::map<std::uint64_t, int> holders;
    for (std::size_t rank = 0; rank < ranks; ++rank)
      if (everywhere || tensor_of[rank] == tensor_of[mine]) ++holders[all[rank * count + i]];
    if (holders.size() < 2) continue;
    // The rarest value is the wrong one; with two ranks, or as many of each, both are named.
    int most = 0;
    for (const auto& [sum, number] : holders) most = std::max(most, number);
    const bool alone = std::count_if(holders.begin(), holders.end(),
                                     [&](const auto& each) { return each.second == most; }) == 1;
    if (!alone || holders[own[i]] < most)
      fault = {.order = static_cast<double>(i),
               .text = fmt::format("the weights {}", local.parameter->name)};
  }
  const bool differs = groups_.world->all_reduce(fault.has_value(), comm::Reduce::max) > 0.0;
  return differs ? describe(fault, suspect) : "";
}

std::string StepVerifier::compare_weights(std::int64_t iteration, bool always) {
  const auto& every = deck_.train.verify.weights_every;
  if (!every || !(always || is_due(every, iteration))) return "";
  if (find_different_replica(/*suspect=*/false).empty()) return "";
  const std::string again = find_different_replica(/*suspect=*/true);
  if (again.empty()) {
    warn(
        iteration,
        fmt::format("silent data corruption: replicas of weights differed in iteration {}, but not "
                    "when they were read again",
                    iteration));
    return "";
  }
  return fmt::format("silent data corruption: in iteration {} replicas of weights differ: {}",
                     iteration, again);
}

// ---- reports

void StepVerifier::note_suspects(const std::vector<std::string>& hosts) {
  if (groups_.world->rank() != 0) return;
  std::vector<std::string> distinct;
  for (const std::string& host : hosts)
    if (!host.empty() && std::find(distinct.begin(), distinct.end(), host) == distinct.end())
      distinct.push_back(host);
  // Two hosts that contradict each other: none can be left out.
  if (distinct.size() != 1) return;
  std::ofstream(suspect_hosts_file(deck_.run.output), std::ios::app) << distinct[0] << '\n';
}

void StepVerifier::warn(std::int64_t iteration, const std::string& message) {
  if (reporter_) reporter_->on(report::WarningEvent{.iteration = iteration, .message = message});
}

}  // namespace trireme::train
