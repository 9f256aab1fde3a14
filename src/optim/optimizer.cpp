#include "optim/optimizer.hpp"

#include <algorithm>
#include <cmath>

namespace trireme::optim {
namespace {

int shard_count(int data_ranks, bool shard_state) { return shard_state ? data_ranks : 1; }

/// Tensors like the owned weights that the rule keeps.
int state_count(const OptimizerConfig& config) {
  if (config.type == OptimizerType::sgd) return config.momentum > 0.0 ? 1 : 0;
  return 2;
}

/// Those, and a master copy of the weights where they are of a half type.
int copies(const OptimizerConfig& config, DType weights) {
  return state_count(config) + (weights == wide(weights) ? 0 : 1);
}

/// Appends a stretch to ascending bounds, joined with the one before when they touch.
void add_stretch(std::vector<std::int64_t>& bounds, const Range& stretch) {
  if (!bounds.empty() && bounds.back() == stretch.begin)
    bounds.back() = stretch.end;
  else
    bounds.insert(bounds.end(), {stretch.begin, stretch.end});
}

/// Where the parameters of the residual stream lie, those that follow each other as one.
std::vector<Range> ranges_of_stream(const model::Placement& placement) {
  std::vector<Range> ranges;
  bool follows = false;
  for (const model::LocalParameter& local : placement.parameters) {
    const Range range{local.offset, local.offset + local.shape.size()};
    if (local.parameter->of_stream && follows)
      ranges.back().end = range.end;
    else if (local.parameter->of_stream)
      ranges.push_back(range);
    follows = local.parameter->of_stream;
  }
  return ranges;
}

/// Elements of the largest range of layers' matrices that a rank owns.
std::int64_t largest_range(const model::Placement& placement, const Shards& shards) {
  std::int64_t largest = 0;
  for (const Range& bucket : shards.buckets_in({placement.common_size, placement.owned_size}))
    largest = std::max(largest, bucket.size() / shards.count());
  return largest;
}

/// Where buckets end: behind what is common to all passes and behind each layer, which are complete
/// at different times.
std::vector<std::int64_t> bucket_ends(const model::Placement& placement) {
  std::vector<std::int64_t> ends{placement.common_size};
  for (const Range& layer : placement.layers) ends.push_back(layer.end);
  return ends;
}

}  // namespace

std::size_t Optimizer::planned_bytes(const model::Placement& placement, int data_ranks,
                                     const OptimizerConfig& config, DType dtype,
                                     bool narrow_gradients) {
  const int count = shard_count(data_ranks, config.shard_state);
  const std::int64_t widened =
      narrow_gradients
          ? largest_range(placement, Shards(bucket_ends(placement), config.bucket, count))
          : 0;
  return (copies(config, dtype) * placement.owned_size / count + widened) * size_of(wide(dtype));
}

Optimizer::Optimizer(device::Backend& backend, model::ParameterStore& parameters,
                     const OptimizerGroups& groups, const OptimizerConfig& config)
    : backend_(backend),
      parameters_(parameters),
      groups_(groups),
      config_(config),
      shards_(bucket_ends(parameters.placement()), config.bucket,
              shard_count(groups.data.size(), config.shard_state)) {
  const model::FlatMemory &weights = parameters.weight_memory(),
                          &gradients = parameters.gradient_memory();
  TRIREME_CHECK(config.shard_state || !(weights.is_cut() || gradients.is_cut()),
                "a rank that holds a part of a matrix cannot keep the state of all of it");
  TRIREME_CHECK(config.type != OptimizerType::lamb || !gradients.is_narrow(),
                "LAMB writes in the place of gradients, which must not be narrow");
  if (gradients.is_cut())
    scatter_.emplace(backend, parameters.placement(), gradients, groups.data, shards_,
                     config.overlap_gradients);
  if (weights.is_cut())
    gather_.emplace(backend, parameters.placement(), weights, groups.data, shards_,
                    config.overlap_parameters);
  allocate_state();
  parts_ = owned_parts();
  build_ranges();
  unreduced_ = buckets_to_reduce();
  if (groups.stream) stream_ranges_ = ranges_of_stream(parameters.placement());
}

void Optimizer::allocate_state() {
  constexpr const char* kNames[] = {"m", "v"};
  const std::int64_t owned = parameters_.placement().owned_size / shards_.count();
  const DType dtype = wide(parameters_.dtype());
  const std::size_t bytes = owned * size_of(dtype);
  const int states = state_count(config_), all = copies(config_, parameters_.dtype());
  const auto sums = static_cast<std::int64_t>(
      config_.type == OptimizerType::lamb ? 2 * parameters_.table().size() : 0);
  const std::int64_t widened = parameters_.gradient_memory().is_narrow()
                                   ? largest_range(parameters_.placement(), shards_)
                                   : 0;
  memory_ = backend_.allocate(all * bytes + (1 + sums) * sizeof(double) + widened * size_of(dtype),
                              "optimizer state");
  auto* base = static_cast<std::byte*>(memory_.get());
  for (int i = 0; i < states; ++i)
    states_.push_back({kNames[i], {base + i * bytes, dtype, {owned}}});
  if (all > states) master_ = {base + states * bytes, dtype, {owned}};
  norm_ = {base + all * bytes, DType::f64, {1}};
  if (sums > 0) squares_ = {base + all * bytes + sizeof(double), DType::f64, {sums}};
  widened_ = {base + all * bytes + (1 + sums) * sizeof(double), dtype, {widened}};
}

std::vector<OwnedPart> Optimizer::owned_parts() const {
  const int index = shards_.count() == 1 ? 0 : groups_.data.rank();
  const bool first_copy = shards_.count() > 1 || groups_.data.rank() == 0;
  std::vector<OwnedPart> parts;
  std::int64_t state_offset = 0;
  for (const Range& range : shards_.owned(index)) {
    for (const model::LocalParameter& local : parameters_.placement().parameters) {
      const std::int64_t begin = std::max(range.begin, local.offset);
      const std::int64_t end = std::min(range.end, local.offset + local.elements());
      if (local.shared || begin >= end) continue;
      parts.push_back(
          {.parameter = local.parameter,
           .boxes = grid::cut_boxes(local.boxes, begin - local.offset, end - local.offset),
           .weight_offset = begin,
           .state_offset = state_offset + begin - range.begin,
           .primary = local.primary && first_copy});
    }
    state_offset += range.size();
  }
  return parts;
}

void Optimizer::build_ranges() {
  std::vector<std::int64_t> bounds;  // of all ranges, uploaded as one
  struct Place {
    std::size_t decayed, counted, end;
  };
  std::vector<Place> places;
  std::int64_t state_offset = 0;
  for (const Range& range : shards_.owned(shards_.count() == 1 ? 0 : groups_.data.rank())) {
    std::vector<std::int64_t> decayed, counted;
    for (const OwnedPart& part : parts_) {
      if (!range.contains(part.weight_offset)) continue;
      const std::int64_t begin = part.weight_offset - range.begin;
      const Range stretch{begin, begin + grid::count_elements(part.boxes)};
      if (part.parameter->weight_decay) add_stretch(decayed, stretch);
      if (part.primary) add_stretch(counted, stretch);
    }
    // No bounds would mean every element: an empty stretch stands for none.
    for (auto* list : {&decayed, &counted})
      if (list->empty()) *list = {0, 0};
    places.push_back({bounds.size(), bounds.size() + decayed.size(),
                      bounds.size() + decayed.size() + counted.size()});
    bounds.insert(bounds.end(), decayed.begin(), decayed.end());
    bounds.insert(bounds.end(), counted.begin(), counted.end());
    ranges_.push_back({.range = range, .state_offset = state_offset});
    state_offset += range.size();
  }
  bounds_memory_ = backend_.allocate(bounds.size() * sizeof bounds[0], "optimizer bounds");
  backend_.upload(bounds_memory_.get(), bounds.data(), bounds.size() * sizeof bounds[0]);
  const auto* uploaded = static_cast<const std::int64_t*>(bounds_memory_.get());
  const auto stretches = [&](std::size_t begin, std::size_t end) {
    return kernels::Stretches{uploaded + begin, static_cast<std::int64_t>(end - begin)};
  };
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    ranges_[i].decayed = stretches(places[i].decayed, places[i].counted);
    ranges_[i].counted = stretches(places[i].counted, places[i].end);
  }
}

void Optimizer::initialize(std::uint64_t seed) {
  for (const OwnedPart& owned : owned_parts()) {
    const Tensor values = master(owned);
    dispatch(values.dtype, [&](auto element) {
      const auto drawn =
          model::initial_values<decltype(element)>(*owned.parameter, owned.boxes, seed);
      backend_.upload(values.data, drawn.data(), drawn.size() * sizeof(element));
    });
  }
  gather_weights();
}

void Optimizer::reduce_gradients() {
  // The tied embedding first: its two copies lie at different places of their stages' buffers, so
  // they cannot be added after those buffers were scattered.
  if (groups_.embedding) {
    for (const model::LocalParameter& local : parameters_.placement().parameters) {
      if (!local.parameter->tied) continue;
      const Tensor gradient = slice(parameters_.gradient_memory(), local);
      groups_.embedding->all_reduce(gradient.data, gradient.size(), gradient.dtype,
                                    comm::Reduce::sum);
    }
  }
  start_reductions(0);
  for (const auto& reduction : reductions_) reduction->wait();
  reductions_.clear();
  unreduced_ = buckets_to_reduce();
  if (scatter_) scatter_->finish();
}

std::size_t Optimizer::buckets_to_reduce() const {
  return scatter_ ? shards_.buckets_in({0, parameters_.placement().common_size}).size()
                  : shards_.buckets().size();
}

// A bucket's sum over the tensor ranks takes its place in the compute stream before the sum over
// the data ranks starts beside it.
void Optimizer::start_reductions(std::int64_t begin) {
  for (; unreduced_ > 0; --unreduced_) {
    const Range& bucket = shards_.buckets()[unreduced_ - 1];
    if (bucket.begin < begin) return;
    sum_stream_gradients(bucket);
    if (groups_.data.size() == 1) continue;
    const Tensor gradient = parameters_.gradient_memory().at(bucket);
    reductions_.push_back(shards_.count() > 1
                              ? groups_.data.start_reduce_scatter(
                                    gradient.data, bucket.size() / shards_.count(), gradient.dtype)
                              : groups_.data.start_all_reduce(gradient.data, gradient.size(),
                                                              gradient.dtype, comm::Reduce::sum));
  }
}

void Optimizer::sum_stream_gradients(const Range& bucket) {
  for (const Range& range : stream_ranges_) {
    const Range common{std::max(range.begin, bucket.begin), std::min(range.end, bucket.end)};
    if (common.size() <= 0) continue;
    const Tensor gradient = parameters_.gradient_memory().at(common);
    groups_.stream->all_reduce(gradient.data, gradient.size(), gradient.dtype, comm::Reduce::sum);
  }
}

void Optimizer::before_adding(const Range& matrices) {
  if (scatter_) scatter_->open(matrices);
}

void Optimizer::after_adding(const Range& matrices, bool complete) {
  if (scatter_)
    scatter_->close(matrices);
  else if (complete && config_.overlap_gradients)
    start_reductions(matrices.begin);
}

Tensor Optimizer::gradient(const OwnedRange& owned) const {
  const Tensor summed = gradient(owned.range, owned.state_offset);
  if (summed.dtype == wide(summed.dtype)) return summed;
  const Tensor widened = widened_.rows(0, summed.size());
  backend_.cast({.x = summed, .out = widened});
  return widened;
}

template <typename Add>
double Optimizer::sum_over_owned(const Add& add) {
  backend_.zero(norm_);
  for (const OwnedRange& owned : ranges_) add(owned, norm_);
  double sum = 0.0;
  backend_.download(&sum, norm_.data, sizeof sum);
  return groups_.world.all_reduce(sum, comm::Reduce::sum);
}

double Optimizer::gradient_norm(double loss_scale) {
  return std::sqrt(sum_over_owned([&](const OwnedRange& owned, const Tensor& sum) {
           backend_.squared_sum({.x = gradient(owned), .out = sum, .counted = owned.counted});
         })) /
         loss_scale;
}

std::int64_t Optimizer::gradient_zeros() {
  return static_cast<std::int64_t>(sum_over_owned([&](const OwnedRange& owned, const Tensor& sum) {
    backend_.zero_count({.x = gradient(owned), .out = sum, .counted = owned.counted});
  }));
}

double Optimizer::parameter_norm() {
  return std::sqrt(sum_over_owned([&](const OwnedRange& owned, const Tensor& sum) {
    backend_.squared_sum({.x = master(owned), .out = sum, .counted = owned.counted});
  }));
}

void Optimizer::gather_weights() {
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    const OwnedRange& owned = ranges_[i];
    if (has_master_copy()) backend_.cast({.x = master(owned), .out = weights(owned)});
    start_gathering(i);
  }
  finish_gathering();
}

void Optimizer::start_gathering(std::size_t index) {
  if (shards_.count() == 1) return;
  const Range& bucket = shards_.buckets()[index];
  if (gather_ && bucket.begin >= parameters_.placement().common_size) return gather_->forget();
  const Tensor weights = parameters_.weight_memory().at(bucket);
  gathers_.resize(shards_.buckets().size());
  gathers_[index] =
      groups_.data.start_all_gather(weights.data, bucket.size() / shards_.count(), weights.dtype);
}

void Optimizer::before_reading(const Range& range, const Range& next) {
  const bool of_layer = range.begin >= parameters_.placement().common_size;
  if (gather_ && of_layer) gather_->bring(range);
  if (gather_) gather_->prefetch(next, of_layer ? range : Range{});
  finish_gathering(range.begin, range.end);
}

void Optimizer::finish_gathering(std::int64_t begin, std::int64_t end) {
  for (std::size_t i = 0; i < gathers_.size(); ++i) {
    const Range& bucket = shards_.buckets()[i];
    if (!gathers_[i] || bucket.end <= begin || bucket.begin >= end) continue;
    gathers_[i]->wait();
    gathers_[i].reset();
  }
}

void Optimizer::finish_gathering() {
  if (!config_.overlap_parameters) finish_gathering(0, parameters_.placement().size);
  if (!groups_.embedding) return;
  for (const model::LocalParameter& local : parameters_.placement().parameters) {
    if (!local.parameter->tied) continue;
    const Tensor weight = slice(parameters_.weight_memory(), local);
    if (!local.shared) finish_gathering(local.offset, local.offset + weight.size());
    groups_.embedding->broadcast(weight.data, weight.bytes(), /*root=*/0);
  }
}

}  // namespace trireme::optim
