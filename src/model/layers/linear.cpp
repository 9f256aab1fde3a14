#include "model/layers/linear.hpp"

#include <algorithm>
#include <numeric>

namespace trireme::model {

Tensor sp_shard(const LayerContext& context, const Tensor& full) {
  if (context.sp_ranks() == 1) return full;
  const std::int64_t rows = full.shape[0] / context.sp_ranks();
  return full.rows(context.tensor.rank() * rows, rows);
}

void sp_reduce(const LayerContext& context, const Tensor& full) {
  if (context.sp_ranks() == 1)
    context.tensor.all_reduce(full.data, full.size(), full.dtype, comm::Reduce::sum);
  else
    context.tensor.reduce_scatter(full.data, full.size() / context.sp_ranks(), full.dtype);
}

std::unique_ptr<comm::Request> start_sp_reduce(const LayerContext& context, const Tensor& full) {
  if (context.sp_ranks() == 1)
    return context.tensor.start_all_reduce(full.data, full.size(), full.dtype, comm::Reduce::sum);
  return context.tensor.start_reduce_scatter(full.data, full.size() / context.sp_ranks(),
                                             full.dtype);
}

void sp_gather(const LayerContext& context, const Tensor& full) {
  if (context.sp_ranks() == 1) return;
  context.tensor.all_gather(full.data, full.size() / context.sp_ranks(), full.dtype);
}

Tensor sp_gather(const LayerContext& context, const Tensor& shard, const Tensor& full) {
  if (context.sp_ranks() == 1) return shard;
  const Tensor own = sp_shard(context, full);
  if (own.data != shard.data) context.backend.copy(own.data, shard.data, shard.bytes());
  sp_gather(context, full);
  return full;
}

void linear_forward(device::Backend& backend, const Tensor& x, const Tensor& weight,
                    const Tensor& y, const Tensor& bias) {
  backend.gemm({.a = x, .b = weight, .c = y, .transpose_b = true, .bias = bias});
}

void linear_weight_gradient(device::Backend& backend, const Tensor& x, const Tensor& dy,
                            const Tensor& dweight, const Tensor& dbias) {
  if (dbias)
    backend.linear_weight_gradient({.x = x, .dy = dy, .dweight = dweight, .dbias = dbias});
  else
    backend.gemm({.a = dy, .b = x, .c = dweight, .transpose_a = true, .beta = 1.0});
}

void linear_input_gradient(device::Backend& backend, const Tensor& dy, const Tensor& weight,
                           const Tensor& dx) {
  backend.gemm({.a = dy, .b = weight, .c = dx});
}

// ---- parameters

void Linear::declare(ParameterTableBuilder& table) const {
  const std::int64_t out = std::accumulate(spec_.out.begin(), spec_.out.end(), std::int64_t{0});
  const bool row_parallel = sharding_ == TensorSharding::columns;
  const auto blocks = row_parallel ? std::vector<std::int64_t>{} : spec_.out;
  table.add({.name = spec_.name + "weight",
             .shape = {out, spec_.in},
             .init = Init::normal,
             .init_std = spec_.init_std,
             .weight_decay = true,
             .sharding = sharding_,
             .row_blocks = blocks,
             .max_shards = spec_.max_shards});
  if (!spec_.bias) return;
  // Every tensor rank holds the whole bias of a row-parallel linear, which the residual stream
  // gets.
  table.add({.name = spec_.name + "bias",
             .shape = {out},
             .sharding = row_parallel ? TensorSharding::none : TensorSharding::rows,
             .row_blocks = blocks,
             .max_shards = spec_.max_shards,
             .sequence_parallel = row_parallel});
}

void Linear::bind(const ParameterStore& parameters) {
  weight_ = parameters[spec_.name + "weight"];
  if (spec_.bias) bias_ = parameters[spec_.name + "bias"];
}

// ---- column-parallel

std::int64_t ColumnParallelLinear::local_out(const LayerSizes& sizes) const {
  const int shards =
      spec_.max_shards > 0 ? std::min(spec_.max_shards, sizes.tensor_ranks) : sizes.tensor_ranks;
  return std::accumulate(spec_.out.begin(), spec_.out.end(), std::int64_t{0}) / shards;
}

void ColumnParallelLinear::gather_input(const LayerContext& context, const Tensor& x) const {
  sp_gather(context, x);
}

void ColumnParallelLinear::forward(const LayerContext& context, const Tensor& x,
                                   const Tensor& y) const {
  linear_forward(context.backend, x, weight_.weight, as_rows(y), bias_.weight);
}

void ColumnParallelLinear::input_gradient(const LayerContext& context, const Tensor& dy,
                                          const Tensor& dx) const {
  linear_input_gradient(context.backend, as_rows(dy), weight_.weight, as_rows(dx));
}

void ColumnParallelLinear::weight_gradient(const LayerContext& context, const Tensor& x,
                                           const Tensor& dy, const Tensor* deferred,
                                           bool add_bias) const {
  const Tensor dbias = add_bias ? bias_.gradient : Tensor();
  if (!deferred)
    return linear_weight_gradient(context.backend, x, as_rows(dy), weight_.gradient, dbias);
  if (dbias) context.backend.bias_gradient({.dout = as_rows(dy), .dbias = dbias});
  context.backend.copy(deferred->data, dy.data, dy.bytes());
}

void ColumnParallelLinear::deferred_weight_gradient(const LayerContext& context, const Tensor& x,
                                                    const Tensor& deferred) const {
  linear_weight_gradient(context.backend, x, as_rows(deferred), weight_.gradient);
}

// ---- row-parallel

void RowParallelLinear::forward(const LayerContext& context, const Tensor& x,
                                const Tensor& y) const {
  linear_forward(context.backend, as_rows(x), weight_.weight, as_rows(y));
  sp_reduce(context, y);
}

Tensor RowParallelLinear::weight_gradient(const LayerContext& context, const Tensor& x,
                                          const Tensor& dy, const Tensor& full, bool deferred,
                                          BiasGradient bias) const {
  // A rank that has some of the positions adds their part of the bias's gradient.
  const bool fused = bias == BiasGradient::fused && !deferred && context.sp_ranks() == 1;
  if (bias_.gradient && bias != BiasGradient::elsewhere && !fused)
    context.backend.bias_gradient({.dout = as_rows(dy), .dbias = bias_.gradient});
  const Tensor complete = as_rows(sp_gather(context, dy, full));
  if (!deferred)
    linear_weight_gradient(context.backend, as_rows(x), complete, weight_.gradient,
                           fused ? bias_.gradient : Tensor());
  return complete;
}

void RowParallelLinear::deferred_weight_gradient(const LayerContext& context, const Tensor& x,
                                                 const Tensor& dy, const Tensor& full) const {
  linear_weight_gradient(context.backend, as_rows(x), as_rows(sp_gather(context, dy, full)),
                         weight_.gradient);
}

void RowParallelLinear::input_gradient(const LayerContext& context, const Tensor& dy,
                                       const Tensor& dx) const {
  linear_input_gradient(context.backend, dy, weight_.weight, as_rows(dx));
}

}  // namespace trireme::model
