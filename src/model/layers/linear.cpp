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

// ---- GEMMs in the activations' type or in FP8

namespace {

/// The first elements of `memory` as an FP8 matrix.
Tensor fp8_matrix(const Tensor& memory, DType dtype, Shape shape, const Tensor& scale) {
  TRIREME_CHECK(shape.size() <= memory.size(), "FP8 operand {} in memory for {} elements",
                to_string(shape), memory.size());
  return {memory.data, dtype, shape, scale.as<float>()};
}

}  // namespace

Linear::LocalExtents Linear::local(const LayerSizes& sizes) const {
  const std::int64_t out = std::accumulate(spec_.out.begin(), spec_.out.end(), std::int64_t{0});
  if (sharding_ == TensorSharding::columns) return {spec_.in / sizes.tensor_ranks, out};
  const int shards =
      spec_.max_shards > 0 ? std::min(spec_.max_shards, sizes.tensor_ranks) : sizes.tensor_ranks;
  return {spec_.in, out / shards};
}

bool Linear::in_fp8(const LayerSizes& sizes) const {
  const auto [in, out] = local(sizes);
  return spec_.fp8 && is_fp8(sizes.precision.gemm) && kernels::fits_fp8(sizes.tokens(), out, in);
}

Fp8Input Linear::take_input(Arena& arena, const LayerSizes& sizes) const {
  if (!in_fp8(sizes)) return {};
  Fp8Input kept;
  kept.transposed = arena.take(sizes.precision.gemm, {local(sizes).in, sizes.tokens()});
  kept.scale = arena.take(DType::f32, {1});
  kept.transposed.scale = kept.scale.as<float>();
  return kept;
}

void Linear::take_fp8_weight(Arena& arena, const LayerSizes& sizes) {
  if (!in_fp8(sizes)) return;
  const auto [in, out] = local(sizes);
  fp8_weight_.rows = arena.take(sizes.precision.gemm, {out, in});
  fp8_weight_.transposed = arena.take(sizes.precision.gemm, {in, out});
  fp8_weight_.scale = arena.take(DType::f32, {1});
  fp8_weight_.rows.scale = fp8_weight_.transposed.scale = fp8_weight_.scale.as<float>();
}

std::int64_t Linear::fp8_elements(const LayerSizes& sizes) const {
  if (!in_fp8(sizes)) return 0;
  const auto [in, out] = local(sizes);
  return sizes.tokens() * std::max(in, out);
}

void Linear::find_amax(const LayerContext& context, const Tensor& x, bool sharded,
                       bool gelu) const {
  const Tensor& amax = context.fp8.amax;
  context.backend.amax({.x = x, .amax = amax, .gelu = gelu});
  if (sharded && context.tensor_ranks > 1)
    context.tensor.all_reduce(amax.data, 1, amax.dtype, comm::Reduce::max);
}

void Linear::cast_weight(const LayerContext& context) const {
  if (!in_fp8(context)) return;
  find_amax(context, weight_.weight, /*sharded=*/true);
  context.backend.quantize({.x = weight_.weight,
                            .amax = context.fp8.amax,
                            .scale = fp8_weight_.scale,
                            .out = fp8_weight_.rows,
                            .transposed = fp8_weight_.transposed});
}

Tensor Linear::cast_input(const LayerContext& context, const Tensor& x, const Fp8Input& kept,
                          bool transposed_alone) const {
  const Tensor& scale = kept.scale ? kept.scale : context.fp8.scale;
  const Tensor out = transposed_alone
                         ? Tensor()
                         : fp8_matrix(context.fp8.operand, context.precision.gemm, x.shape, scale);
  find_amax(context, x, /*sharded=*/sharding_ == TensorSharding::columns, kept.gelu);
  context.backend.quantize({.x = x,
                            .amax = context.fp8.amax,
                            .scale = scale,
                            .out = out,
                            .transposed = kept.transposed,
                            .gelu = kept.gelu});
  return out;
}

void Linear::forward_gemm(const LayerContext& context, const Tensor& x, const Tensor& y,
                          const Tensor& bias, const Fp8Input& kept) const {
  if (!in_fp8(context)) return linear_forward(context.backend, x, weight_.weight, y, bias);
  context.backend.gemm({.a = cast_input(context, x, kept, /*transposed_alone=*/false),
                        .b = fp8_weight_.rows,
                        .c = y,
                        .transpose_b = true,
                        .bias = bias,
                        .fast_accumulation = true});
}

void Linear::cast_gradient(const LayerContext& context, const Tensor& dy,
                           bool transposed_alone) const {
  if (!in_fp8(context)) return;
  const Fp8Workspace& fp8 = context.fp8;
  const DType dtype = context.precision.gemm_gradients;
  find_amax(context, dy, /*sharded=*/sharding_ == TensorSharding::rows);
  context.backend.quantize(
      {.x = dy,
       .amax = fp8.amax,
       .scale = fp8.scale,
       .out = transposed_alone ? Tensor() : fp8_matrix(fp8.operand, dtype, dy.shape, fp8.scale),
       .transposed = fp8_matrix(fp8.transposed, dtype, {dy.shape[1], dy.shape[0]}, fp8.scale)});
}

void Linear::input_gradient_gemm(const LayerContext& context, const Tensor& dy,
                                 const Tensor& dx) const {
  if (!in_fp8(context)) return linear_input_gradient(context.backend, dy, weight_.weight, dx);
  const Fp8Workspace& fp8 = context.fp8;
  context.backend.gemm(
      {.a = fp8_matrix(fp8.operand, context.precision.gemm_gradients, dy.shape, fp8.scale),
       .b = fp8_weight_.transposed,
       .c = dx,
       .transpose_b = true});
}

void Linear::weight_gradient_gemm(const LayerContext& context, const Tensor& x, const Tensor& dy,
                                  const Tensor& dbias, const Fp8Input& kept) const {
  if (!in_fp8(context))
    return linear_weight_gradient(context.backend, x, dy, weight_.gradient, dbias);
  TRIREME_CHECK(kept.transposed, "{}weight: its input is not kept in FP8", spec_.name);
  const Fp8Workspace& fp8 = context.fp8;
  context.backend.gemm({.a = fp8_matrix(fp8.transposed, context.precision.gemm_gradients,
                                        {dy.shape[1], dy.shape[0]}, fp8.scale),
                        .b = kept.transposed,
                        .c = weight_.gradient,
                        .transpose_b = true,
                        .beta = 1.0});
  if (dbias) context.backend.bias_gradient({.dout = dy, .dbias = dbias});
}

// ---- column-parallel

void ColumnParallelLinear::gather_input(const LayerContext& context, const Tensor& x) const {
  sp_gather(context, x);
}

void ColumnParallelLinear::forward(const LayerContext& context, const Tensor& x, const Tensor& y,
                                   const Fp8Input& kept) const {
  forward_gemm(context, x, as_rows(y), bias_.weight, kept);
}

void ColumnParallelLinear::input_gradient(const LayerContext& context, const Tensor& dy,
                                          const Tensor& dx) const {
  cast_gradient(context, as_rows(dy), /*transposed_alone=*/false);
  input_gradient_gemm(context, as_rows(dy), as_rows(dx));
}

void ColumnParallelLinear::weight_gradient(const LayerContext& context, const Tensor& x,
                                           const Tensor& dy, const Tensor* deferred, bool add_bias,
                                           const Fp8Input& kept) const {
  const Tensor dbias = add_bias ? bias_.gradient : Tensor();
  if (!deferred) return weight_gradient_gemm(context, x, as_rows(dy), dbias, kept);
  if (dbias) context.backend.bias_gradient({.dout = as_rows(dy), .dbias = dbias});
  context.backend.copy(deferred->data, dy.data, dy.bytes());
}

void ColumnParallelLinear::deferred_weight_gradient(const LayerContext& context, const Tensor& x,
                                                    const Tensor& deferred,
                                                    const Fp8Input& kept) const {
  cast_gradient(context, as_rows(deferred), /*transposed_alone=*/true);
  weight_gradient_gemm(context, x, as_rows(deferred), {}, kept);
}

// ---- row-parallel

void RowParallelLinear::forward(const LayerContext& context, const Tensor& x, const Tensor& y,
                                const Fp8Input& kept) const {
  forward_gemm(context, as_rows(x), as_rows(y), {}, kept);
  sp_reduce(context, y);
}

void RowParallelLinear::keep_input(const LayerContext& context, const Tensor& x,
                                   const Fp8Input& kept) const {
  if (in_fp8(context)) cast_input(context, as_rows(x), kept, /*transposed_alone=*/true);
}

Tensor RowParallelLinear::weight_gradient(const LayerContext& context, const Tensor& x,
                                          const Tensor& dy, const Tensor& full, bool deferred,
                                          BiasGradient bias, const Fp8Input& kept) const {
  // A rank that has some of the positions adds their part of the bias's gradient.
  const bool fused = bias == BiasGradient::fused && !deferred && context.sp_ranks() == 1;
  if (bias_.gradient && bias != BiasGradient::elsewhere && !fused)
    context.backend.bias_gradient({.dout = as_rows(dy), .dbias = bias_.gradient});
  const Tensor complete = as_rows(sp_gather(context, dy, full));
  cast_gradient(context, complete, /*transposed_alone=*/false);
  if (!deferred)
    weight_gradient_gemm(context, as_rows(x), complete, fused ? bias_.gradient : Tensor(), kept);
  return complete;
}

void RowParallelLinear::deferred_weight_gradient(const LayerContext& context, const Tensor& x,
                                                 const Tensor& dy, const Tensor& full,
                                                 const Fp8Input& kept) const {
  const Tensor complete = as_rows(sp_gather(context, dy, full));
  cast_gradient(context, complete, /*transposed_alone=*/true);
  weight_gradient_gemm(context, as_rows(x), complete, {}, kept);
}

void RowParallelLinear::input_gradient(const LayerContext& context, const Tensor& dy,
                                       const Tensor& dx) const {
  input_gradient_gemm(context, dy, as_rows(dx));
}

}  // namespace trireme::model
