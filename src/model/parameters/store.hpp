// A rank's weights and gradients, and the tensors in them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/tensor.hpp"
#include "device/backend.hpp"
#include "model/parameters/table.hpp"

namespace trireme::model {

/// What the data ranks shard; each stage shards all that the one before does, and more. Source:
/// Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models"
/// (2020), section 5.
enum class ZeroStage { none, optimizer_state, gradients, weights };

/// How the matrices of a rank's layers, which are nearly all of a large model, are held: whole on
/// each data rank; or sharded over them, with buffers in which passes find one whole layer each.
struct ShardingSpec {
  int data_ranks = 1;
  bool sharded = false;
  /// Two layers' buffers instead of one: while passes use one, the other is gathered or reduced.
  bool overlap = true;

  /// Layers' buffers; the rank's i-th layer uses buffer i % buffers().
  int buffers() const { return !sharded ? 0 : overlap ? 2 : 1; }
};

/// The elements of a Placement in the backend's memory: all that is common to passes is whole on
/// each rank, the layers' matrices are sharded as ShardingSpec says.
class ParameterBuffer {
 public:
  ParameterBuffer() = default;
  /// Allocates and zeroes memory for elements of type `common`, the matrices' of `matrices`.
  /// `placement` must outlive this; `purpose` is for messages.
  ParameterBuffer(device::Backend& backend, const Placement& placement, DType common,
                  DType matrices, const ShardingSpec& sharding, const char* purpose);
  /// The bytes that this allocates.
  static std::size_t planned_bytes(const Placement& placement, DType common, DType matrices,
                                   const ShardingSpec& sharding);

  explicit operator bool() const { return static_cast<bool>(memory_); }
  /// Whether the matrices are sharded over the data ranks.
  bool is_sharded() const { return !parts_.buffers.empty(); }
  /// Layers' buffers where the matrices are sharded.
  int buffers() const { return static_cast<int>(parts_.buffers.size()); }

  /// The elements of `range` where passes read and write them: of one layer, or of none. Where
  /// matrices are sharded, a place that other layers use as well.
  Tensor at(const Range& range) const;
  /// Where the owner of `range`, one rank's part of a bucket, keeps it. `state` is the number of
  /// owned elements before it. Where matrices are sharded, not where at() has it.
  Tensor own(const Range& range, std::int64_t state) const;
  /// All elements in the placement's order; throws InternalError where they are not held so.
  Tensor all() const;

  /// All that is allocated, laid out alike on all data ranks.
  std::span<std::byte> memory() const {
    return {static_cast<std::byte*>(memory_.get()), parts_.bytes};
  }

  /// Writes zeros over all that is kept: everything but the layers' buffers.
  void zero(device::Backend& backend) const;

 private:
  struct Parts {
    bool in_order = false;  ///< one type, nothing sharded
    Tensor all;             ///< then
    Tensor common;          ///< else: the common elements, then the shared copies
    Tensor matrices;        ///< and the layers' where they are whole
    Tensor own;             ///< or this rank's part of each
    std::vector<Tensor> buffers;
    std::size_t bytes = 0;
    static Parts take(std::byte* base, const Placement& placement, DType common, DType matrices,
                      const ShardingSpec& sharding);
  };

  const Placement* placement_ = nullptr;
  Parts parts_;
  std::int64_t common_state_ = 0;  ///< owned elements before those of matrices
  device::Buffer memory_;
};

/// Writes the initial values of the elements of `slabs` of a parameter to the first elements of
/// `out` in memory order: each drawn from the parameter's name and the element's
/// global index, the same bits on every backend.
void draw_initial_values(device::Backend& backend, const Parameter& parameter,
                         const grid::Hyperslabs& slabs, std::uint64_t seed, const Tensor& out);

/// A parameter's weight and the gradient that backward passes add to; both of the local shape.
struct WeightGradient {
  Tensor weight;
  Tensor gradient;
};

/// What a store holds, and how.
struct StoreOptions {
  bool gradients = false;  ///< left out where a model is only evaluated
  ZeroStage zero = ZeroStage::none;
  bool overlap_weights = true;    ///< ShardingSpec::overlap of sharded weights
  bool overlap_gradients = true;  ///< and of sharded gradients

  ShardingSpec weight_sharding(int data_ranks) const {
    return {data_ranks, zero >= ZeroStage::weights, overlap_weights};
  }
  ShardingSpec gradient_sharding(int data_ranks) const {
    return {data_ranks, zero >= ZeroStage::gradients, overlap_gradients};
  }
};

/// The local parts of all parameters of one rank.
class ParameterStore {
 public:
  /// Allocates and zeroes the memory of the rank at `place`. `table` is copied.
  ParameterStore(device::Backend& backend, std::vector<Parameter> table, const grid::Layout& layout,
                 const grid::Coordinates& place, const Precision& precision,
                 const StoreOptions& options = {});
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  /// The bytes that this allocates.
  struct Bytes {
    std::size_t weights = 0, gradients = 0;
  };
  static Bytes planned_bytes(const Placement& placement, int data_ranks, const Precision& precision,
                             const StoreOptions& options);

  /// Draws the initial weights, which must be whole: each element from its parameter's name and
  /// global index, so that every layout starts from the same model.
  void initialize(std::uint64_t seed);

  /// The tensors of a logical name; throws InternalError when this rank does not hold it. Where
  /// matrices are sharded, they lie in a layer's buffer.
  WeightGradient operator[](const std::string& name) const;

  const std::vector<Parameter>& table() const { return table_; }
  const Placement& placement() const { return placement_; }
  const Precision& precision() const { return precision_; }

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
  Precision precision_;
  ParameterBuffer weights_;
  ParameterBuffer gradients_;
};

/// The part of a flat buffer that holds `local`, with the local shape.
Tensor slice(const Tensor& flat, const LocalParameter& local);
Tensor slice(const ParameterBuffer& memory, const LocalParameter& local);

/// Called by a stage's passes for the elements of a ParameterStore that they use. Each range is
/// that of a layer's matrices, or that of all else.
class ParameterHooks {
 public:
  virtual ~ParameterHooks() = default;

  /// The weights of `range` are about to be read, and then, most likely, those of `next`, which is
  /// empty where nothing is known.
  virtual void before_use(const Range& range, const Range& next) = 0;
  /// A pass is about to add to the gradients of a layer's matrices.
  virtual void before_gradient(const Range& matrices) = 0;
  /// It has. When they are `complete`, no other pass of this step adds to them, nor to those of the
  /// layers after it.
  virtual void gradient_ready(const Range& matrices, bool complete) = 0;
};

}  // namespace trireme::model
