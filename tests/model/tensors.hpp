// Tensors of the host backend as vectors of doubles, and the logical tensors of a model whose parts
// are spread over ranks, whole on every rank.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "core/tensor.hpp"
#include "optim/optimizer.hpp"

namespace trireme::test {

/// The elements of a tensor in host memory.
inline std::vector<double> to_doubles(const Tensor& tensor) {
  if (tensor.dtype != accumulation_type(tensor.dtype)) {
    std::vector<float> floats(tensor.size());
    convert_to_float(tensor.data, floats.size(), tensor.dtype, floats.data());
    return {floats.begin(), floats.end()};
  }
  return dispatch(tensor.dtype, [&](auto element) {
    const auto* data = tensor.as<decltype(element)>();
    return std::vector<double>(data, data + tensor.size());
  });
}

/// Writes `values`, as many as the tensor has elements, rounded to its type.
inline void assign(const Tensor& tensor, std::span<const double> values) {
  TRIREME_CHECK(std::ssize(values) == tensor.size(), "{} values for shape {}", values.size(),
                to_string(tensor.shape));
  if (tensor.dtype != accumulation_type(tensor.dtype)) {
    const std::vector<float> floats(values.begin(), values.end());
    return convert_from_float(floats.data(), floats.size(), tensor.dtype, tensor.data);
  }
  dispatch(tensor.dtype, [&](auto element) {
    std::copy(values.begin(), values.end(), tensor.as<decltype(element)>());
  });
}

/// L2 norm.
inline double norm(std::span<const double> x) {
  double squares = 0.0;
  for (double value : x) squares += value * value;
  return std::sqrt(squares);
}

/// L2 norm of x - y, which must be of one size.
inline double distance(std::span<const double> x, std::span<const double> y) {
  TRIREME_CHECK(x.size() == y.size(), "{} and {} elements", x.size(), y.size());
  double squares = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) squares += (x[i] - y[i]) * (x[i] - y[i]);
  return std::sqrt(squares);
}

/// The fused projection's bias without its key third, whose exact gradient is zero: the softmax
/// does not see what is added to all keys.
inline std::vector<double> without_key(const std::string& name, const std::vector<double>& tensor) {
  if (!name.ends_with("qkv/bias")) return tensor;
  const auto third = std::ssize(tensor) / 3;
  std::vector<double> rest(tensor.begin(), tensor.begin() + third);
  rest.insert(rest.end(), tensor.begin() + 2 * third, tensor.end());
  return rest;
}

/// Whole tensors by logical name, row-major.
using LogicalTensors = std::map<std::string, std::vector<double>>;

/// The tensors of `table`, all zeros.
inline LogicalTensors zeros(const std::vector<model::Parameter>& table) {
  LogicalTensors tensors;
  for (const model::Parameter& parameter : table)
    tensors[parameter.name].resize(parameter.shape.size());
  return tensors;
}

/// Calls function(memory index, logical index) for the elements of `slabs` in memory order; the
/// memory index starts at 0, the logical one is row-major in `shape`.
template <typename Function>
void for_each_element(const grid::Hyperslabs& slabs, const Shape& shape, Function&& function) {
  const std::int64_t row_size = shape.rank() == 2 ? shape[1] : 1;
  std::int64_t at = 0;
  for (const grid::Hyperslab& slab : slabs)
    for (std::int64_t row = slab.row; row < slab.row + slab.rows; ++row)
      for (std::int64_t column = slab.column; column < slab.column + slab.columns; ++column)
        function(at++, row * row_size + column);
}

/// Puts together what each rank's optimizer owns: `values(part)` holds that of a part. Collective
/// over `world`.
template <typename Values>
LogicalTensors gather(const optim::Optimizer& optimizer, const std::vector<model::Parameter>& table,
                      comm::Communicator& world, const Values& values) {
  LogicalTensors tensors = zeros(table);
  for (const optim::OwnedPart& part : optimizer.owned_parts()) {
    if (!part.primary) continue;
    const std::vector<double> own = to_doubles(values(part));
    std::vector<double>& tensor = tensors[part.parameter->name];
    for_each_element(part.slabs, part.parameter->shape,
                     [&](std::int64_t at, std::int64_t index) { tensor[index] += own[at]; });
  }
  for (auto& [name, tensor] : tensors)
    world.all_reduce(tensor.data(), tensor.size(), DType::f64, comm::Reduce::sum);
  return tensors;
}

/// What a flat tensor holds: weights and gradients share one order, the moments another.
enum class Flat { parameters, moments };

/// The same of a flat tensor: gradients after reduce_gradients(), weights or moments.
inline LogicalTensors gather(const optim::Optimizer& optimizer,
                             const std::vector<model::Parameter>& table, const Tensor& flat,
                             Flat kind, comm::Communicator& world) {
  return gather(optimizer, table, world, [&](const optim::OwnedPart& part) {
    return flat.rows(kind == Flat::moments ? part.state_offset : part.weight_offset,
                     grid::count_elements(part.slabs));
  });
}

}  // namespace trireme::test
