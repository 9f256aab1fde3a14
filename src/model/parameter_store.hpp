// A rank's weights and gradients: two flat buffers and the tensors in them.
#pragma once

#include <string>
#include <vector>

#include "device/backend.hpp"
#include "model/parameter_table.hpp"

namespace trireme::model {

/// The initial values of the elements of `boxes` of a parameter, in memory order: each drawn from
/// the parameter's name and the element's global index.
template <typename T>
std::vector<T> initial_values(const Parameter& parameter, const grid::Boxes& boxes,
                              std::uint64_t seed);

/// A parameter's weight and the gradient that backward passes add to, of its wide type; both of the
/// local shape.
struct WeightGradient {
  Tensor weight;
  Tensor gradient;
};

/// The local parts of all parameters of one rank. Gradients may be left out where a model is only
/// evaluated.
class ParameterStore {
 public:
  /// Allocates and zeroes the flat buffers of the rank at `place`: weights of `dtype`, gradients of
  /// its wide type. `table` is copied.
  ParameterStore(device::Backend& backend, std::vector<Parameter> table, const grid::Layout& layout,
                 const grid::Coordinates& place, DType dtype, bool with_gradients);
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  /// Draws the initial weights: each element from its parameter's name and global index, so that
  /// every layout starts from the same model.
  void initialize(std::uint64_t seed);

  /// The tensors of a logical name; throws InternalError when this rank does not hold it.
  WeightGradient operator[](const std::string& name) const;
  /// Whether this rank holds a logical name.
  bool holds(const std::string& name) const;

  const std::vector<Parameter>& table() const { return table_; }
  const Placement& placement() const { return placement_; }
  DType dtype() const { return weights_.dtype; }

  /// The flat buffers, `placement().size` elements each.
  Tensor weights() const { return weights_; }
  Tensor gradients() const { return gradients_; }
  /// Writes zeros over all gradients.
  void zero_gradients();

 private:
  const LocalParameter* find(const std::string& name) const;

  device::Backend& backend_;
  std::vector<Parameter> table_;
  Placement placement_;
  device::Buffer weight_memory_;
  device::Buffer gradient_memory_;
  Tensor weights_;
  Tensor gradients_;
};

/// The part of a flat buffer that holds `local`, with the local shape.
Tensor slice(const Tensor& flat, const LocalParameter& local);

}  // namespace trireme::model
