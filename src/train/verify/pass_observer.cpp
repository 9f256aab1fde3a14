#include "train/verify/step_verifier.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <sstream>
#include <vector>

#include "core/dtype.hpp"
#include "core/error.hpp"

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

}  // namespace trireme::train
