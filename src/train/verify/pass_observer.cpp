// What the passes of a step compute, observed; and where a model holds numbers that are not finite.
#include "train/verify/step_verifier.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "checkpoint/elements.hpp"
#include "core/error.hpp"
#include "core/system/process.hpp"
#include "core/tensor.hpp"

namespace trireme::train {
namespace {

constexpr const char* kTargets[] = {"weights", "gradients", "activations", "messages"};

[[noreturn]] void refuse(const std::string& text) {
  throw DeckError(
      "train.verify.inject = {}: expected weights, gradients, activations or messages, then any of "
      "rank=, iteration=, bit=, element= and times= with a whole number",
      text);
}

}  // namespace

BitFlip BitFlip::parse(const std::string& text) {
  std::istringstream words(text);
  std::string word;
  words >> word;
  const auto target = std::find(std::begin(kTargets), std::end(kTargets), word);
  if (target == std::end(kTargets)) refuse(text);
  BitFlip flip{.target = static_cast<Target>(target - std::begin(kTargets))};
  while (words >> word) {
    const std::size_t equals = word.find('=');
    std::int64_t value = 0;
    const char* const end = word.data() + word.size();
    if (equals == std::string::npos) refuse(text);
    const auto [stop, error] = std::from_chars(word.data() + equals + 1, end, value);
    if (error != std::errc() || stop != end || value < 0) refuse(text);
    const std::string name = word.substr(0, equals);
    if (name == "rank")
      flip.rank = static_cast<int>(value);
    else if (name == "iteration")
      flip.iteration = value;
    else if (name == "bit" && value < 64)
      flip.bit = static_cast<int>(value);
    else if (name == "element")
      flip.element = value;
    else if (name == "times")
      flip.times = value;
    else
      refuse(text);
  }
  return flip;
}

void BitFlip::apply(device::Backend& backend, const Tensor& tensor) const {
  const auto width = static_cast<std::int64_t>(size_of(tensor.dtype));
  const std::int64_t at = std::min(element, tensor.size() - 1) * width;
  const std::int64_t flipped = std::min<std::int64_t>(bit, 8 * width - 2);
  std::byte* const address = static_cast<std::byte*>(tensor.data) + at + flipped / 8;
  std::byte value{};
  backend.download(&value, address, 1);
  value ^= std::byte{1} << (flipped % 8);
  backend.upload(address, &value, 1);
  backend.synchronize();
}

PassObserver::PassObserver(device::Backend& backend, const model::ParameterStore& parameters,
                           optim::Optimizer& optimizer, const comm::Groups& groups,
                           std::int64_t micro_batches)
    : backend_(backend),
      parameters_(parameters),
      optimizer_(optimizer),
      groups_(groups),
      chunks_(static_cast<std::size_t>(groups.layout.chunks)),
      activations_(static_cast<std::size_t>(micro_batches) * chunks_),
      layers_(parameters.placement().layers.size()),
      sums_(backend.allocate(places() * sizeof(std::uint64_t), "checksums (train.verify)")) {}

void PassObserver::begin(Mode mode, const data::Sampler& sampler, std::int64_t consumed,
                         const std::optional<BitFlip>& flip) {
  mode_ = mode;
  sampler_ = sampler;
  consumed_ = consumed;
  flip_ = flip;
  if (mode == Mode::checksums)
    backend_.zero({sums_.get(), DType::f64, {static_cast<std::int64_t>(places())}});
  if (mode == Mode::values) values_.assign(places(), {});
}

// ---- what passes call

std::size_t PassObserver::activation(const pipeline::Step& step) const {
  return static_cast<std::size_t>(step.micro_batch) * chunks_ +
         static_cast<std::size_t>(step.chunk);
}

void PassObserver::after_forward(const pipeline::Step& step, const Tensor& output) {
  flip(BitFlip::Target::activations, output);
  observe(activation(step), output);
}

void PassObserver::after_backward(const pipeline::Step& step, const Tensor& gradient) {
  // The first virtual stage has no input whose gradient it could leave.
  if (step.chunk > 0 || !groups_.is_first_stage()) observe(this->gradient(step), gradient);
}

void PassObserver::gradient_ready(const model::Range& matrices, bool complete) {
  const model::ParameterBuffer& gradients = parameters_.gradient_buffer();
  if (complete || gradients.is_sharded()) {
    const auto& layers = parameters_.placement().layers;
    const auto index = std::find(layers.begin(), layers.end(), matrices) - layers.begin();
    const Tensor tensor = gradients.at(matrices);
    flip(BitFlip::Target::gradients, tensor);
    observe(layer(static_cast<std::size_t>(index)), tensor);
  }
  optimizer_.gradient_ready(matrices, complete);
}

void PassObserver::before_reduction() {
  const model::Range range{0, parameters_.placement().common_size};
  if (range.size() > 0) observe(common(), parameters_.gradient_buffer().at(range));
}

void PassObserver::after_reduction() {
  const auto& parts = optimizer_.owned_parts();
  if (!parts.empty()) flip(BitFlip::Target::messages, optimizer_.gradient(parts.front()));
  for (std::size_t i = 0; i < parts.size(); ++i) observe(reduced(i), optimizer_.gradient(parts[i]));
}

void PassObserver::flip(BitFlip::Target target, const Tensor& tensor) {
  if (!flip_ || flip_->target != target || tensor.size() == 0) return;
  flip_->apply(backend_, tensor);
  flip_.reset();  // one element of one step
}

void PassObserver::observe(std::size_t place, const Tensor& tensor) {
  if (mode_ == Mode::checksums)
    backend_.checksum({.x = tensor, .out = static_cast<std::uint64_t*>(sums_.get()) + place});
  if (mode_ != Mode::values) return;
  constexpr std::int64_t kPart = std::int64_t{4} << 20;  // elements copied at a time
  std::vector<std::byte> raw;
  std::vector<float> floats;
  Values& values = values_[place];
  const Tensor flat = tensor.view({tensor.size()});
  for (std::int64_t begin = 0; begin < flat.size(); begin += kPart) {
    const Tensor part = flat.rows(begin, std::min(kPart, flat.size() - begin));
    raw.resize(part.bytes());
    floats.resize(static_cast<std::size_t>(part.size()));
    backend_.download(raw.data(), part.data, raw.size());
    convert_to_float(raw.data(), part.size(), part.dtype, floats.data());
    for (const float value : floats) {
      values.finite &= std::isfinite(value);
      if (std::isfinite(value)) values.largest = std::max(values.largest, std::abs(double{value}));
    }
  }
}

// ---- what was observed

std::vector<std::uint64_t> PassObserver::checksums() {
  std::vector<std::uint64_t> sums(places());
  backend_.download(sums.data(), sums_.get(), sums.size() * sizeof sums[0]);
  return sums;
}

int PassObserver::layer_number(std::size_t index) const {
  const std::int64_t begin = parameters_.placement().layers[index].begin;
  for (const model::LocalParameter& local : parameters_.placement().parameters)
    if (local.offset == begin) return local.parameter->layer;
  throw InternalError("no parameter begins with the matrices of layer {} of this rank", index);
}

PassObserver::Fault PassObserver::fault_at(std::size_t place) const {
  const auto stages = static_cast<std::size_t>(groups_.layout.pipeline);
  const auto last = static_cast<double>(stages * chunks_);
  const auto virtual_stage = [&](std::size_t chunk) {
    return static_cast<double>(chunk * stages + static_cast<std::size_t>(groups_.place.pipeline));
  };
  if (place < 2 * activations_) {
    const bool backward = place >= activations_;
    const std::size_t index = place % activations_, chunk = index % chunks_;
    const std::int64_t first =
        sampler_.first_sample(consumed_, static_cast<std::int64_t>(index / chunks_));
    return {.order = backward ? 2.0 * last - virtual_stage(chunk) + 0.5 : virtual_stage(chunk),
            .text = fmt::format("the {} of samples {} to {} (micro-batch {}) that leave stage {}",
                                backward ? "gradients" : "activations", first,
                                first + sampler_.micro_batch - 1, index / chunks_,
                                virtual_stage(chunk))};
  }
  if (place < common()) {
    const std::size_t index = place - layer(0);
    const int number = layer_number(index);
    // Layers with higher numbers are earlier in the backward pass.
    return {.order = 2.0 * last -
                     virtual_stage(index * chunks_ / std::max<std::size_t>(layers_, 1)) -
                     1e-4 * number,
            .text = fmt::format("the gradient of layer {}", number)};
  }
  if (place == common())
    return {.order = 3.0 * last, .text = "the gradient of embeddings, norms and biases"};
  return {.order = 4.0 * last,
          .text = fmt::format("the reduced gradient of {}",
                              optimizer_.owned_parts()[place - reduced(0)].parameter->name)};
}

std::optional<PassObserver::Fault> PassObserver::first_difference(
    const std::vector<std::uint64_t>& a, const std::vector<std::uint64_t>& b) const {
  std::optional<Fault> first;
  for (std::size_t place = 0; place < places(); ++place) {
    if (a[place] == b[place]) continue;
    Fault fault = fault_at(place);
    if (!first || fault.order < first->order) first = std::move(fault);
  }
  return first;
}

std::optional<PassObserver::Fault> PassObserver::first_non_finite() const {
  std::optional<Fault> first;
  for (std::size_t place = 0; place < values_.size(); ++place) {
    if (values_[place].finite) continue;
    Fault fault = fault_at(place);
    if (!first || fault.order < first->order) first = std::move(fault);
  }
  return first;
}

PassObserver::Largest PassObserver::largest_gradient() const {
  Largest largest;
  for (std::size_t place = layer(0); place <= common() && place < values_.size(); ++place)
    if (values_[place].largest > largest.value)
      largest = {values_[place].largest, fault_at(place).text};
  return largest;
}

// ---- where a model holds numbers that are not finite

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

}  // namespace trireme::train
