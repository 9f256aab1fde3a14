#include "model/parameters/store.hpp"

#include "core/philox.hpp"

namespace trireme::model {
namespace {

DType gradient_type(DType dtype, const StoreOptions& options) {
  return options.narrow_gradients ? dtype : wide(dtype);
}

}  // namespace

template <typename T>
std::vector<T> initial_values(const Parameter& parameter, const grid::Hyperslabs& slabs,
                              std::uint64_t seed) {
  std::vector<T> values(grid::count_elements(slabs), T{0});
  if (parameter.init == Init::zeros) return values;
  const std::int64_t row_size = parameter.shape.rank() == 2 ? parameter.shape[1] : 1;
  const std::uint64_t stream = name_hash(parameter.name.c_str());
  std::int64_t start = 0;
  for (const grid::Hyperslab& slab : slabs) {
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < slab.size(); ++i) {
      const std::int64_t index =
          (slab.row + i / slab.columns) * row_size + slab.column + i % slab.columns;
      values[start + i] =
          parameter.init == Init::ones
              ? T{1}
              : static_cast<T>(parameter.init_std * philox_normal(seed, stream, index));
    }
    start += slab.size();
  }
  return values;
}

template std::vector<float> initial_values(const Parameter&, const grid::Hyperslabs&,
                                           std::uint64_t);
template std::vector<double> initial_values(const Parameter&, const grid::Hyperslabs&,
                                            std::uint64_t);

ParameterStore::ParameterStore(device::Backend& backend, std::vector<Parameter> table,
                               const grid::Layout& layout, const grid::Coordinates& place,
                               DType dtype, const StoreOptions& options)
    : backend_(backend),
      table_(std::move(table)),
      placement_(place_parameters(table_, layout, place)),
      dtype_(dtype),
      weights_(backend, placement_, dtype, dtype, {layout.data, options.weight_buffers},
               "weights") {
  if (options.gradients)
    gradients_ = ParameterBuffer(backend, placement_, wide(dtype), gradient_type(dtype, options),
                                 {layout.data, options.gradient_buffers}, "gradients");
}

ParameterStore::Bytes ParameterStore::planned_bytes(const Placement& placement, int data_ranks,
                                                    DType dtype, const StoreOptions& options) {
  const auto bytes = [&](DType common, DType matrices, int buffers) {
    return ParameterBuffer::planned_bytes(placement, common, matrices, {data_ranks, buffers});
  };
  return {bytes(dtype, dtype, options.weight_buffers),
          options.gradients
              ? bytes(wide(dtype), gradient_type(dtype, options), options.gradient_buffers)
              : 0};
}

void ParameterStore::initialize(std::uint64_t seed) {
  for (const LocalParameter& local : placement_.parameters)
    dispatch(dtype(), [&](auto element) {
      const auto values = initial_values<decltype(element)>(*local.parameter, local.slabs, seed);
      backend_.upload(slice(weights(), local).data, values.data(), values.size() * sizeof(element));
    });
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
