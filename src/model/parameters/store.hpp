// A rank's weights and gradients, and the tensors in them.
#pragma once

#include <string>
#include <vector>

#include "device/backend.hpp"
#include "model/parameters/buffer.hpp"
#include "model/parameters/placement.hpp"

namespace trireme::model {

/// The initial values of the elements of `slabs` of a parameter, in memory order: each drawn from
/// the parameter's name and the element's global index.
template <typename T>
std::vector<T> initial_values(const Parameter& parameter, const grid::Hyperslabs& slabs,
                              std::uint64_t seed);

/// A parameter's weight and the gradient that backward passes add to; both of the local shape.
struct WeightGradient {
  Tensor weight;
  Tensor gradient;
};

/// What a store holds besides whole weights.
struct StoreOptions {
  bool gradients = false;         ///< left out where a model is only evaluated
  int weight_buffers = 0;         ///< ShardingSpec::buffers of the weights: more than 0 is ZeRO-3
  int gradient_buffers = 0;       ///< and of the gradients: ZeRO-2
  bool narrow_gradients = false;  ///< those of matrices have the weights' type, not its wide type
};

/// The local parts of all parameters of one rank.
class ParameterStore {
 public:
  /// Allocates and zeroes the memory of the rank at `place`: weights of `dtype`, gradients of its
  /// wide type. `table` is copied.
  ParameterStore(device::Backend& backend, std::vector<Parameter> table, const grid::Layout& layout,
                 const grid::Coordinates& place, DType dtype, const StoreOptions& options = {});
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  /// The bytes that this allocates.
  struct Bytes {
    std::size_t weights = 0, gradients = 0;
  };
  static Bytes planned_bytes(const Placement& placement, int data_ranks, DType dtype,
                             const StoreOptions& options);

  /// Draws the initial weights, which must be whole: each element from its parameter's name and
  /// global index, so that every layout starts from the same model.
  void initialize(std::uint64_t seed);

  /// The tensors of a logical name; throws InternalError when this rank does not hold it. Where
  /// matrices are sharded, they lie in a layer's buffer.
  WeightGradient operator[](const std::string& name) const;

  const std::vector<Parameter>& table() const { return table_; }
  const Placement& placement() const { return placement_; }
  DType dtype() const { return dtype_; }

  /// All weights and gradients in the placement's order, `placement().size` elements. Throw
  /// InternalError where they are not held so: see ParameterBuffer.
  Tensor weights() const { return weights_.all(); }
  Tensor gradients() const { return gradients_.all(); }
  /// How they are held.
  const ParameterBuffer& weight_buffer() const { return weights_; }
  const ParameterBuffer& gradient_buffer() const { return gradients_; }
  /// Writes zeros over all gradients.
  void zero_gradients();

 private:
  const LocalParameter* find(const std::string& name) const;

  device::Backend& backend_;
  std::vector<Parameter> table_;
  Placement placement_;
  DType dtype_;
  ParameterBuffer weights_;
  ParameterBuffer gradients_;
};

/// The part of a flat buffer that holds `local`, with the local shape.
Tensor slice(const Tensor& flat, const LocalParameter& local);
Tensor slice(const ParameterBuffer& memory, const LocalParameter& local);

}  // namespace trireme::model
