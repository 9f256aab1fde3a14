#include "model/parameters/store.hpp"

#include <algorithm>

#include "core/philox.hpp"

namespace trireme::model {
namespace {

constexpr std::size_t kAlignment = 256;

}  // namespace

ParameterBuffer::Parts ParameterBuffer::Parts::take(std::byte* base, const Placement& placement,
                                                    DType common, DType matrices,
                                                    const ShardingSpec& sharding) {
  Parts parts;
  const auto take = [&](DType dtype, std::int64_t size) {
    const std::size_t begin = (parts.bytes + kAlignment - 1) / kAlignment * kAlignment;
    const Tensor tensor{base ? base + begin : nullptr, dtype, {size}};
    parts.bytes = begin + tensor.bytes();
    return tensor;
  };
  const std::int64_t layers_size = placement.layers_size();
  const bool sharded = sharding.sharded && sharding.data_ranks > 1 && layers_size > 0;
  parts.in_order = !sharded && common == matrices;
  if (parts.in_order) {
    parts.all = take(common, placement.size);
    return parts;
  }
  parts.common = take(common, placement.size - layers_size);
  if (!sharded) {
    parts.matrices = take(matrices, layers_size);
    return parts;
  }
  parts.own = take(matrices, layers_size / sharding.data_ranks);
  std::int64_t largest = 0;
  for (const Range& layer : placement.layers) largest = std::max(largest, layer.size());
  for (int i = 0; i < std::min<int>(sharding.buffers(), std::ssize(placement.layers)); ++i)
    parts.buffers.push_back(take(matrices, largest));
  return parts;
}

ParameterBuffer::ParameterBuffer(device::Backend& backend, const Placement& placement, DType common,
                                 DType matrices, const ShardingSpec& sharding, const char* purpose)
    : placement_(&placement),
      common_state_(placement.common_size / sharding.data_ranks),
      memory_(backend.allocate(planned_bytes(placement, common, matrices, sharding), purpose)) {
  parts_ =
      Parts::take(static_cast<std::byte*>(memory_.get()), placement, common, matrices, sharding);
}

std::size_t ParameterBuffer::planned_bytes(const Placement& placement, DType common, DType matrices,
                                           const ShardingSpec& sharding) {
  return Parts::take(nullptr, placement, common, matrices, sharding).bytes;
}

Tensor ParameterBuffer::at(const Range& range) const {
  if (parts_.in_order) return parts_.all.rows(range.begin, range.size());
  const std::int64_t first = placement_->common_size;  // element of a layer's matrices
  if (range.end <= first) return parts_.common.rows(range.begin, range.size());
  if (range.begin >= placement_->owned_size)
    return parts_.common.rows(range.begin - placement_->layers_size(), range.size());
  if (!is_sharded()) return parts_.matrices.rows(range.begin - first, range.size());
  const std::size_t layer = placement_->layer_at(range.begin);
  return parts_.buffers[layer % parts_.buffers.size()].rows(
      range.begin - placement_->layers[layer].begin, range.size());
}

Tensor ParameterBuffer::own(const Range& range, std::int64_t state) const {
  if (!is_sharded() || range.end <= placement_->common_size) return at(range);
  return parts_.own.rows(state - common_state_, range.size());
}

Tensor ParameterBuffer::all() const {
  TRIREME_CHECK(parts_.in_order, "the elements are not consecutive in memory");
  return parts_.all;
}

void ParameterBuffer::zero(device::Backend& backend) const {
  for (const Tensor& part : {parts_.all, parts_.common, parts_.matrices, parts_.own})
    if (part) backend.zero(part);
}

void draw_initial_values(device::Backend& backend, const Parameter& parameter,
                         const grid::Hyperslabs& slabs, std::uint64_t seed, const Tensor& out) {
  const std::int64_t count = grid::count_elements(slabs);
  const Tensor values = out.view({out.size()}).rows(0, count);
  switch (parameter.init) {
    case Init::zeros:
      backend.zero(values);
      return;
    case Init::ones: {
      const std::vector<float> ones(count, 1.0f);
      std::vector<std::byte> elements(values.bytes());
      convert_from_float(ones.data(), count, out.dtype, elements.data());
      backend.upload(values.data, elements.data(), elements.size());
      return;
    }
    case Init::normal: {
      std::int64_t start = 0;
      for (const grid::Hyperslab& slab : slabs) {
        backend.random_normal(
            {.out = values.rows(start, slab.size()).view({slab.rows, slab.columns}),
             .deviation = parameter.init_std,
             .cutoff = cutoff_at(parameter.init_cutoff),
             .seed = seed,
             .stream = name_hash(parameter.name.c_str()),
             .row = slab.row,
             .column = slab.column,
             .width = parameter.shape.rank() == 2 ? parameter.shape[1] : 1});
        start += slab.size();
      }
      return;
    }
  }
}

ParameterStore::ParameterStore(device::Backend& backend, std::vector<Parameter> table,
                               const grid::Layout& layout, const grid::Coordinates& place,
                               const Precision& precision, const StoreOptions& options)
    : backend_(backend),
      table_(std::move(table)),
      placement_(place_parameters(table_, layout, place)),
      precision_(precision),
      weights_(backend, placement_, precision.weights, precision.weights,
               options.weight_sharding(layout.data), "weights") {
  if (options.gradients)
    gradients_ = ParameterBuffer(backend, placement_, precision.master, precision.gradients,
                                 options.gradient_sharding(layout.data), "gradients");
}

ParameterStore::Bytes ParameterStore::planned_bytes(const Placement& placement, int data_ranks,
                                                    const Precision& precision,
                                                    const StoreOptions& options) {
  return {ParameterBuffer::planned_bytes(placement, precision.weights, precision.weights,
                                         options.weight_sharding(data_ranks)),
          options.gradients
              ? ParameterBuffer::planned_bytes(placement, precision.master, precision.gradients,
                                               options.gradient_sharding(data_ranks))
              : 0};
}

void ParameterStore::initialize(std::uint64_t seed) {
  for (const LocalParameter& local : placement_.parameters)
    draw_initial_values(backend_, *local.parameter, local.slabs, seed, slice(weights(), local));
}

const LocalParameter* ParameterStore::find(const std::string& name) const {
  for (const LocalParameter& local : placement_.parameters)
    if (local.parameter->name == name) return &local;
  return nullptr;
}

WeightGradient ParameterStore::operator[](const std::string& name) const {
  const LocalParameter* local = find(name);
  TRIREME_CHECK(local, "this rank does not hold parameter '{}'", name);
  return {slice(weights_, *local), gradients_ ? slice(gradients_, *local) : Tensor{}};
}

void ParameterStore::zero_gradients() { gradients_.zero(backend_); }

Tensor slice(const Tensor& flat, const LocalParameter& local) {
  return flat.rows(local.offset, local.shape.size()).view(local.shape);
}

Tensor slice(const ParameterBuffer& memory, const LocalParameter& local) {
  return memory.at({local.offset, local.offset + local.shape.size()}).view(local.shape);
}

}  // namespace trireme::model
