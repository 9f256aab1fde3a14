#include "train/run_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "checkpoint/elements.hpp"
#include "core/dtype.hpp"
#include "core/error.hpp"
#include "core/system/process.hpp"
#include "train/trainer.hpp"

namespace trireme::train {
namespace {

/// "loss 9.1 is 7.2 standard deviations above the mean 3.2 of 128 iterations", or nothing.
std::optional<std::string> exceeds(const char* name, double value,
                                   const std::vector<double>& before, double above) {
  const auto count = static_cast<double>(before.size());
  const double mean = std::accumulate(before.begin(), before.end(), 0.0) / count;
  double squares = 0.0;
  for (const double each : before) squares += (each - mean) * (each - mean);
  const double deviation = std::sqrt(squares / count);
  if (!(value > mean + above * deviation)) return std::nullopt;
  return fmt::format(
      "{} {:.6g} is {:.3g} standard deviations above the mean {:.6g} of {} iterations", name, value,
      (value - mean) / deviation, mean, before.size());
}

}  // namespace

void SpikeHistory::add(double loss, double norm, std::int64_t window) {
  for (auto* values : {&losses, &norms}) {
    values->push_back(values == &losses ? loss : norm);
    const auto extra = std::max<std::int64_t>(std::ssize(*values) - window, 0);
    values->erase(values->begin(), values->begin() + extra);
  }
}

std::string SpikeHistory::text() const {
  std::string text = fmt::format("{} {}", skipped, losses.size());
  for (const auto* values : {&losses, &norms})
    for (const double value : *values) text += fmt::format(" {}", value);  // round trips exactly
  return text;
}

SpikeHistory SpikeHistory::from(const std::string& text) {
  std::istringstream words(text);
  SpikeHistory history;
  std::size_t count = 0;
  words >> history.skipped >> count;
  if (count > text.size()) words.setstate(std::ios::failbit);
  for (auto* values : {&history.losses, &history.norms}) {
    values->resize(words ? count : 0);
    for (double& value : *values) words >> value;
  }
  if (!words) throw DataError("'{}' is no history of train.spike", text);
  return history;
}

std::optional<std::string> find_spike(const deck::Spike& rule, const SpikeHistory& history,
                                      double loss, double norm) {
  if (!rule.above || std::ssize(history.losses) < *rule.window || history.skipped >= *rule.limit)
    return std::nullopt;
  if (auto problem = exceeds("loss", loss, history.losses, *rule.above)) return problem;
  return exceeds("gradient norm", norm, history.norms, *rule.above);
}

namespace {

/// A value and where it is in the logical tensor.
struct Element {
  double value = 0.0;
  std::int64_t row = 0, column = 0;
};

/// What one rank's elements of a parameter are like.
struct Finding {
  std::optional<Element> bad;  ///< the first that is not finite
  Element largest;             ///< of the finite ones, in magnitude
};
/// By parameter of the table.
using Findings = std::vector<Finding>;

/// Looks at this rank's parts of all parameters.
class Search {
 public:
  Search(device::Backend& backend, const model::ParameterStore& parameters)
      : parameters_(parameters), view_(&backend), findings_(parameters.table().size()) {}

  /// The weights that passes read; of matrices that are sharded, which must be given `optimizer`,
  /// the shard.
  Findings weights(const optim::Optimizer* optimizer) && {
    // A rank may hold a damaged copy of weights that others update.
    const model::ParameterBuffer& memory = parameters_.weight_buffer();
    if (!memory.is_sharded())
      for (const model::LocalParameter& local : parameters_.placement().parameters)
        look_at(*local.parameter, local.slabs, slice(memory, local));
    if (!optimizer) return std::move(findings_);
    for (const optim::OwnedPart& part : optimizer->owned_parts())
      for (const Tensor& tensor : {optimizer->master(part), optimizer->weights(part)})
        look_at(*part.parameter, part.slabs, tensor);
    return std::move(findings_);
  }

  Findings gradients(const optim::Optimizer& optimizer) && {
    for (const optim::OwnedPart& part : optimizer.owned_parts())
      look_at(*part.parameter, part.slabs, optimizer.gradient(part));
    return std::move(findings_);
  }

 private:
  void look_at(const model::Parameter& parameter, const grid::Hyperslabs& slabs,
               const Tensor& tensor) {
    Finding& finding = findings_[&parameter - parameters_.table().data()];
    view_.read(
        slabs, tensor.dtype, tensor.data, [&](const grid::Hyperslabs& piece, const void* data) {
          std::vector<float> values(grid::count_elements(piece));
          convert_to_float(data, values.size(), tensor.dtype, values.data());
          const float* value = values.data();
          for (const grid::Hyperslab& slab : piece)
            for (std::int64_t i = 0; i < slab.size(); ++i)
              add({*value++, slab.row + i / slab.columns, slab.column + i % slab.columns}, finding);
        });
  }

  static void add(const Element& element, Finding& finding) {
    if (!std::isfinite(element.value)) {
      if (!finding.bad) finding.bad = element;
    } else if (std::abs(element.value) > std::abs(finding.largest.value)) {
      finding.largest = element;
    }
  }

  const model::ParameterStore& parameters_;
  checkpoint::HostView view_;
  Findings findings_;
};

/// "layers/0/mlp/up/weight[3, 17] on rank 1 (node0)"; the rank where there are several.
std::string place(const comm::MpiCommunicator& world, const model::Parameter& parameter,
                  const Element& element) {
  std::string text = parameter.shape.rank() == 1
                         ? fmt::format("{}[{}]", parameter.name, element.row)
                         : fmt::format("{}[{}, {}]", parameter.name, element.row, element.column);
  if (world.size() > 1) text += fmt::format(" on rank {} ({})", world.rank(), host_name());
  return text;
}

/// The first text that is not empty, of the ranks in their order. Collective.
std::string first_of(comm::MpiCommunicator& world, const std::string& text) {
  const std::vector<std::string> all = world.all_gather_text(text);
  const auto found = std::find_if(all.begin(), all.end(), [](auto& each) { return !each.empty(); });
  return found == all.end() ? "" : *found;
}

/// The first parameter that `findings` of any rank call bad, in words. Collective.
std::string first_bad(comm::MpiCommunicator& world, const char* kind,
                      const model::ParameterStore& parameters, const Findings& findings) {
  std::vector<double> bad(findings.size());
  for (std::size_t i = 0; i < bad.size(); ++i) bad[i] = findings[i].bad ? 1.0 : 0.0;
  world.all_reduce(bad.data(), bad.size(), DType::f64, comm::Reduce::max);
  const auto first = static_cast<std::size_t>(std::find(bad.begin(), bad.end(), 1.0) - bad.begin());
  if (first == bad.size()) return "";
  std::string text;
  if (const auto& element = findings[first].bad) {
    const auto count = std::count(bad.begin(), bad.end(), 1.0);
    text = fmt::format("the {} {} is {}; {} of {} parameters {} such {}s", kind,
                       place(world, parameters.table()[first], *element),
                       std::isnan(element->value) ? "nan" : "infinite", count, bad.size(),
                       count == 1 ? "has" : "have", kind);
  }
  return first_of(world, text);
}

}  // namespace

std::string find_non_finite(comm::MpiCommunicator& world, device::Backend& backend,
                            const model::ParameterStore& parameters,
                            const optim::Optimizer& optimizer) {
  const std::string weight =
      first_bad(world, "weight", parameters, Search(backend, parameters).weights(&optimizer));
  if (!weight.empty()) return weight;
  return first_bad(world, "gradient", parameters, Search(backend, parameters).gradients(optimizer));
}

std::string find_non_finite(comm::MpiCommunicator& world, device::Backend& backend,
                            const model::ParameterStore& parameters) {
  return first_bad(world, "weight", parameters, Search(backend, parameters).weights(nullptr));
}

std::string find_largest_weight(comm::MpiCommunicator& world, device::Backend& backend,
                                const model::ParameterStore& parameters,
                                const optim::Optimizer& optimizer) {
  const Findings findings = Search(backend, parameters).weights(&optimizer);
  const auto magnitude = [](const Finding& finding) { return std::abs(finding.largest.value); };
  const auto own = std::max_element(
      findings.begin(), findings.end(),
      [&](const Finding& a, const Finding& b) { return magnitude(a) < magnitude(b); });
  const double largest = magnitude(*own);
  const bool is_here = world.all_reduce(largest, comm::Reduce::max) == largest;
  return first_of(
      world,
      is_here ? fmt::format("{:.4g} in {}", own->largest.value,
                            place(world, parameters.table()[own - findings.begin()], own->largest))
              : "");
}

// ---------------------------------------------------------------------------- what the trainer
// does with it

StopReason Trainer::judge(const StepResult& result) {
  if (reports_at(state_.iteration) && !check_weights())
    return diverged(fmt::format("the weights of iteration {} are not finite", state_.iteration));
  if (!result.is_bad()) {
    // An iteration that is skipped while the loss scale is searched for tells nothing.
    if (result.applied) {
      state_.bad_iterations = 0;
      delete_old_checkpoints();
    }
    return StopReason::none;
  }
  ++state_.bad_iterations;
  const bool at_end = state_.iteration == end_.iteration && !std::isfinite(result.loss);
  if (state_.bad_iterations < deck_.train.diverged_after && !at_end) return StopReason::none;
  return diverged(
      fmt::format("{} iteration{} in a row up to iteration {} had no finite loss and "
                  "gradient (train.diverged_after = {})",
                  state_.bad_iterations, state_.bad_iterations == 1 ? "" : "s", state_.iteration,
                  deck_.train.diverged_after));
}

bool Trainer::check_weights() {
  // The root mean square of a model's weights is between 0.01 and 1.
  constexpr double kAbsurd = 100.0;
  const double norm = optimizer_.parameter_norm();
  if (!std::isfinite(norm)) return false;
  const double rms = norm / std::sqrt(static_cast<double>(plan_.parameters));
  const bool absurd = rms > kAbsurd;
  if (absurd && !warned_of_weights_)
    warn(
        fmt::format("the weights are absurdly large, {:.3g} in root mean square; the largest is {}",
                    rms, find_largest_weight(*groups_.world, backend_, parameters_, optimizer_)));
  warned_of_weights_ = absurd;
  return true;
}

StopReason Trainer::diverged(const std::string& what) {
  const std::string where = find_non_finite(*groups_.world, backend_, parameters_, optimizer_);
  diagnosis_ = fmt::format(
      "training diverged: {}; {}; resume from a checkpoint before that (--restart PATH) with a "
      "lower schedule.peak, or without the data that led there (train.skip)",
      what, where.empty() ? "all weights and gradients are finite" : where);
  warn(diagnosis_);
  return StopReason::diverged;
}

void Trainer::warn(const std::string& message) {
  if (reporter_)
    reporter_->on(report::WarningEvent{.iteration = state_.iteration, .message = message});
}

}  // namespace trireme::train
