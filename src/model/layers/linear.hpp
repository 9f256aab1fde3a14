// Linear layers y = x W^T + b of tensor parallelism: column-parallel ones shard the rows of W (the
// outputs) over the tensor ranks, row-parallel ones its columns (the inputs).
// Source: Shoeybi et al., "Megatron-LM" (2019), section 3.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/context.hpp"
#include "model/parameters/store.hpp"

namespace trireme::model {

/// This rank's shard of `full` [s, b, h] or [T, h]; all of it without sequence parallelism.
Tensor sp_shard(const LayerContext& context, const Tensor& full);

/// Leaves in sp_shard(full) the sum of `full` over the tensor ranks, by a reduce-scatter or an
/// all-reduce: the end of a row-parallel linear. Under sequence parallelism the rest of `full` is
/// left undefined. Collective.
void sp_reduce(const LayerContext& context, const Tensor& full);
/// The same, overlapped with what is enqueued next until wait().
std::unique_ptr<comm::Request> start_sp_reduce(const LayerContext& context, const Tensor& full);

/// Completes `full`, of which each rank has written sp_shard(), by an all-gather: the start of a
/// column-parallel linear. Collective.
void sp_gather(const LayerContext& context, const Tensor& full);
/// The same for a `shard` that may lie elsewhere: copied into `full` and completed there; without
/// sequence parallelism `shard` itself is the result. Collective.
Tensor sp_gather(const LayerContext& context, const Tensor& shard, const Tensor& full);

// The GEMMs of a linear layer: x, dx [T, in], y, dy [T, out], weight, dweight [out, in], bias,
// dbias [out]; T stands for all axes but the last. Types as kernels::Gemm has them.

/// Writes y = x weight^T + bias, or without a bias y = x weight^T.
void linear_forward(device::Backend& backend, const Tensor& x, const Tensor& weight,
                    const Tensor& y, const Tensor& bias = {});
/// Adds dy^T x to dweight and, where it is given, the column sums of dy to dbias.
void linear_weight_gradient(device::Backend& backend, const Tensor& x, const Tensor& dy,
                            const Tensor& dweight, const Tensor& dbias = {});
/// Writes dx = dy weight.
void linear_input_gradient(device::Backend& backend, const Tensor& dy, const Tensor& weight,
                           const Tensor& dx);

/// The shape and initialization of a linear layer.
struct LinearSpec {
  std::string name;               ///< prefix of "weight" and "bias", such as "layers/3/mlp/up/"
  std::vector<std::int64_t> out;  ///< rows of W, each block sharded separately
  std::int64_t in = 1;            ///< columns of W
  double init_std = 0.02;
  bool bias = true;
  int max_shards = 0;  ///< of column-parallel ones: Parameter::max_shards
};

/// The parameters of a linear layer.
class Linear {
 public:
  /// `sharding` is rows (column-parallel) or columns (row-parallel).
  Linear(LinearSpec spec, TensorSharding sharding) : spec_(std::move(spec)), sharding_(sharding) {}

  void declare(ParameterTableBuilder& table) const;
  /// `parameters` must hold the declared ones and outlive this.
  void bind(const ParameterStore& parameters);

  /// Of a bound layer; empty without a bias.
  const WeightGradient& weight() const { return weight_; }
  const WeightGradient& bias() const { return bias_; }

 protected:
  LinearSpec spec_;
  TensorSharding sharding_;
  WeightGradient weight_, bias_;
};

/// y [T, out / t] = x W^T + b from the whole x [T, in].
class ColumnParallelLinear : public Linear {
 public:
  explicit ColumnParallelLinear(LinearSpec spec) : Linear(std::move(spec), TensorSharding::rows) {}

  /// Outputs on each rank: out / t, or out / max_shards with more ranks.
  std::int64_t local_out(const LayerSizes& sizes) const;

  /// Completes x, of which each rank has written sp_shard(): before forward(), or a kernel that
  /// does more than forward(). Collective.
  void gather_input(const LayerContext& context, const Tensor& x) const;
  /// Writes y from a complete x.
  void forward(const LayerContext& context, const Tensor& x, const Tensor& y) const;

  /// Writes this rank's term of dx = dy W [T, in]; the caller sums it over the tensor ranks.
  void input_gradient(const LayerContext& context, const Tensor& dy, const Tensor& dx) const;
  /// Adds the gradients of W and, with `add_bias`, of b. With `deferred` [T, out / t], dy is copied
  /// there instead, for deferred_weight_gradient() to add that of W.
  void weight_gradient(const LayerContext& context, const Tensor& x, const Tensor& dy,
                       const Tensor* deferred, bool add_bias) const;
  void deferred_weight_gradient(const LayerContext& context, const Tensor& x,
                                const Tensor& deferred) const;
};

/// Which kernel of weight_gradient() adds the gradient of a row-parallel linear's bias: the one
/// that adds that of W, a separate one, or none: the caller does.
enum class BiasGradient { fused, separate, elsewhere };

/// y [s, b, out] = sum over the tensor ranks of x W^T from x [T, in / t]. The caller adds the
/// bias, fused with the residual sum.
class RowParallelLinear : public Linear {
 public:
  explicit RowParallelLinear(LinearSpec spec) : Linear(std::move(spec), TensorSharding::columns) {}

  /// Leaves this rank's shard of y in sp_shard(y). Collective.
  void forward(const LayerContext& context, const Tensor& x, const Tensor& y) const;

  /// Completes the gradient `dy` [S, b, out] of the shard in `full` [s, b, out] and adds those of W
  /// and b; with `deferred` that of W is left to deferred_weight_gradient(). Returns the complete
  /// gradient [T, out]. Collective.
  Tensor weight_gradient(const LayerContext& context, const Tensor& x, const Tensor& dy,
                         const Tensor& full, bool deferred, BiasGradient bias) const;
  /// `dy` is the gradient that weight_gradient() had. Collective.
  void deferred_weight_gradient(const LayerContext& context, const Tensor& x, const Tensor& dy,
                                const Tensor& full) const;
  /// Writes dx = dy W [T, in / t] from the complete dy [T, out].
  void input_gradient(const LayerContext& context, const Tensor& dy, const Tensor& dx) const;
};

}  // namespace trireme::model
