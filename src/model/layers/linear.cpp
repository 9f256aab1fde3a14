#include "model/layers/linear.hpp"

#include <algorithm>

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

SpGather start_sp_gather(const LayerContext& context, const Tensor& full) {
  SpGather gather;
  if (context.sp_ranks() > 1)
    gather.request = context.tensor.start_all_gather(full.data, full.size() / context.sp_ranks(),
                                                     full.dtype, gather.arrivals);
  return gather;
}

SpGather start_sp_gather(const LayerContext& context, const Tensor& shard, const Tensor& full) {
  if (context.sp_ranks() == 1) return {};
  const Tensor own = sp_shard(context, full);
  if (own.data != shard.data) context.backend.copy(own.data, shard.data, shard.bytes());
  return start_sp_gather(context, full);
}

void linear_forward(device::Backend& backend, const Tensor& x, const Tensor& weight,
                    const Tensor& y, const Tensor& bias, const PartArrivals& arrivals) {
  backend.gemm(
      {.a = x, .b = weight, .c = y, .transpose_b = true, .bias = bias, .arrivals = arrivals});
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

namespace {

/// Rows of `blocks` on each of `tensor_ranks`.
std::int64_t rows_of(const std::vector<RowBlock>& blocks, int tensor_ranks) {
  std::int64_t rows = 0;
  for (const RowBlock& block : blocks) rows += block.rows / block.shards(tensor_ranks);
  return rows;
}

}  // namespace

void Linear::declare(ParameterTableBuilder& table) const {
  const std::int64_t out = rows_of(spec_.out, /*tensor_ranks=*/1);
  const bool row_parallel = sharding_ == TensorSharding::columns;
  const auto blocks = row_parallel ? std::vector<RowBlock>{} : spec_.out;
  table.add({.name = spec_.name + "weight",
             .shape = {out, spec_.in},
             .init = Init::normal,
             .init_std = spec_.init_std,
             .weight_decay = true,
             .sharding = sharding_,
             .row_blocks = blocks});
  if (!spec_.bias) return;
  // Every tensor rank holds the whole bias of a row-parallel linear, which the residual stream
  // gets.
  table.add({.name = spec_.name + "bias",
             .shape = {out},
             .sharding = row_parallel ? TensorSharding::none : TensorSharding::rows,
             .row_blocks = blocks,
             .sequence_parallel = row_parallel});
}

void Linear::bind(const ParameterStore& parameters) {
  weight_ = parameters[spec_.name + "weight"];
  if (spec_.bias) bias_ = parameters[spec_.name + "bias"];
}

// ---- GEMMs in the activations' type or in FP8

namespace {

using kernels::ScaleBlocks;

std::int64_t scale_count(ScaleBlocks blocks, const Shape& shape) {
  return kernels::scale_layout(blocks, shape[0], shape[1]).count;
}

Fp8Matrix with_scales(Tensor codes, const Tensor& scales) {
  codes.scale = scales.as<float>();
  return {codes, scales};
}

Fp8Matrix take_matrix(Arena& arena, DType dtype, const Shape& shape, ScaleBlocks blocks) {
  const Tensor codes = arena.take(dtype, shape);
  return with_scales(codes, arena.take(DType::f32, {scale_count(blocks, shape)}));
}

/// The first elements of `memory` as an FP8 matrix, and of `scales` as its scales.
Fp8Matrix matrix_in(const Tensor& memory, DType dtype, const Shape& shape, const Tensor& scales,
                    ScaleBlocks blocks) {
  TRIREME_CHECK(shape.size() <= memory.size(), "FP8 operand {} in memory for {} elements",
                to_string(shape), memory.size());
  return with_scales({memory.data, dtype, shape}, scales.rows(0, scale_count(blocks, shape)));
}

}  // namespace

ScaleBlocks Linear::weight_blocks() const {
  return spec_.fp8_blocks ? ScaleBlocks::squares : ScaleBlocks::tensor;
}

ScaleBlocks Linear::operand_blocks() const {
  return spec_.fp8_blocks ? ScaleBlocks::vectors : ScaleBlocks::tensor;
}

Fp8Matrix Linear::gradient_matrix(const LayerContext& context, const Tensor& dy) const {
  const Fp8Workspace& fp8 = context.fp8;
  return matrix_in(fp8.operand, context.precision.gemm_gradients, dy.shape, fp8.scales,
                   operand_blocks());
}

Fp8Matrix Linear::transposed_gradient_matrix(const LayerContext& context, const Tensor& dy) const {
  const Fp8Workspace& fp8 = context.fp8;
  return matrix_in(fp8.transposed, context.precision.gemm_gradients, {dy.shape[1], dy.shape[0]},
                   spec_.fp8_blocks ? fp8.transposed_scales : fp8.scales, operand_blocks());
}

Linear::LocalExtents Linear::local(const LayerSizes& sizes) const {
  if (sharding_ == TensorSharding::columns)
    return {spec_.in / sizes.tensor_ranks, rows_of(spec_.out, 1)};
  return {spec_.in, rows_of(spec_.out, sizes.tensor_ranks)};
}

bool Linear::shards_have_whole_blocks(const LayerSizes& sizes) const {
  if (sizes.tensor_ranks == 1) return true;
  if (sharding_ == TensorSharding::columns) return local(sizes).in % kernels::kScaleBlock == 0;
  return std::ranges::all_of(spec_.out, [&](const RowBlock& block) {
    return block.rows / block.shards(sizes.tensor_ranks) % kernels::kScaleBlock == 0;
  });
}

bool Linear::in_fp8(const LayerSizes& sizes) const {
  const LocalExtents extents = local(sizes);
  return spec_.fp8 && is_fp8(sizes.precision.gemm) &&
         kernels::fits_fp8(sizes.tokens(), extents.out, extents.in) &&
         (!spec_.fp8_blocks || shards_have_whole_blocks(sizes));
}

Fp8Input Linear::take_input(Arena& arena, const LayerSizes& sizes) const {
  if (!in_fp8(sizes)) return {};
  return {take_matrix(arena, sizes.precision.gemm, {local(sizes).in, sizes.tokens()},
                      operand_blocks())};
}

void Linear::take_fp8_weight(Arena& arena, const LayerSizes& sizes) {
  if (!in_fp8(sizes)) return;
  const LocalExtents extents = local(sizes);
  const DType dtype = sizes.precision.gemm;
  const Shape transposed{extents.in, extents.out};
  fp8_weight_ = take_matrix(arena, dtype, {extents.out, extents.in}, weight_blocks());
  fp8_weight_transposed_ = spec_.fp8_blocks
                               ? take_matrix(arena, dtype, transposed, weight_blocks())
                               : with_scales(arena.take(dtype, transposed), fp8_weight_.scales);
}

Tensor Linear::with_amax(const LayerContext& context, const Tensor& x, int i, bool gathered) const {
  Tensor result = x;
  result.amax = nullptr;
  if (in_fp8(context) && !spec_.fp8_blocks && spec_.fp8_number >= 0 && context.fp8.amaxes &&
      (!gathered || context.sp_ranks() == 1))
    result.amax = context.fp8.amaxes.as<float>() + 2 * spec_.fp8_number + i;
  return result;
}

Tensor Linear::with_input_amax(const LayerContext& context, const Tensor& x) const {
  return with_amax(context, x, 0, /*gathered=*/sharding_ == TensorSharding::rows);
}

Tensor Linear::with_gradient_amax(const LayerContext& context, const Tensor& dy) const {
  return with_amax(context, dy, 1, /*gathered=*/sharding_ == TensorSharding::columns);
}

Fp8Sizes Linear::fp8_sizes(const LayerSizes& sizes) const {
  if (!in_fp8(sizes)) return {};
  const LocalExtents extents = local(sizes);
  const std::int64_t tokens = sizes.tokens(), widest = std::max(extents.in, extents.out);
  const ScaleBlocks blocks = operand_blocks();
  return {.elements = tokens * widest,
          .scales = scale_count(blocks, {tokens, widest}),
          .transposed_scales = scale_count(blocks, {extents.out, tokens})};
}

void Linear::cast(const LayerContext& context, const Source& source, const Fp8Matrix& out,
                  const Fp8Matrix& transposed) const {
  if (spec_.fp8_blocks)
    return context.backend.quantize_blocks({.x = source.x,
                                            .out = out.codes,
                                            .out_scales = out.scales,
                                            .transposed = transposed.codes,
                                            .transposed_scales = transposed.scales,
                                            .squares = source.weight,
                                            .gelu = source.gelu});
  const bool known = source.x.amax != nullptr;
  TRIREME_CHECK(!known || !source.gelu, "{}weight: amax of x, not of its GELU", spec_.name);
  const Tensor amax = known ? Tensor{source.x.amax, DType::f32, {1}} : context.fp8.amax;
  if (!known) context.backend.amax({.x = source.x, .amax = amax, .gelu = source.gelu});
  if (source.sharded && context.tensor_ranks > 1)
    context.tensor.all_reduce(amax.data, 1, amax.dtype, comm::Reduce::max);
  context.backend.quantize({.x = source.x,
                            .amax = amax,
                            .scale = out.codes ? out.scales : transposed.scales,
                            .out = out.codes,
                            .transposed = transposed.codes,
                            .gelu = source.gelu});
}

void Linear::cast_weight(const LayerContext& context) const {
  if (!in_fp8(context)) return;
  cast(context, {.x = weight_.weight, .sharded = true, .weight = true}, fp8_weight_,
       fp8_weight_transposed_);
}

Tensor Linear::cast_input(const LayerContext& context, const Tensor& x, const Fp8Input& kept,
                          bool transposed_alone) const {
  const bool shares_scale = kept.transposed.codes && !spec_.fp8_blocks;
  Fp8Matrix out;
  if (!transposed_alone)
    out = matrix_in(context.fp8.operand, context.precision.gemm, x.shape,
                    shares_scale ? kept.transposed.scales : context.fp8.scales, operand_blocks());
  cast(context, {.x = x, .sharded = sharding_ == TensorSharding::columns, .gelu = kept.gelu}, out,
       kept.transposed);
  return out.codes;
}

void Linear::forward_gemm(const LayerContext& context, const Tensor& x, const Tensor& y,
                          const Tensor& bias, const Fp8Input& kept,
                          const PartArrivals& arrivals) const {
  if (!in_fp8(context))
    return linear_forward(context.backend, x, weight_.weight, y, bias, arrivals);
  context.backend.gemm({.a = cast_input(context, x, kept, /*transposed_alone=*/false),
                        .b = fp8_weight_.codes,
                        .c = y,
                        .transpose_b = true,
                        .bias = bias,
                        .fast_accumulation = !spec_.fp8_blocks,
                        .blocks_a = operand_blocks(),
                        .blocks_b = weight_blocks()});
}

void Linear::cast_gradient(const LayerContext& context, const Tensor& dy,
                           bool transposed_alone) const {
  if (!in_fp8(context)) return;
  cast(context, {.x = dy, .sharded = sharding_ == TensorSharding::rows},
       transposed_alone ? Fp8Matrix() : gradient_matrix(context, dy),
       transposed_gradient_matrix(context, dy));
}

void Linear::input_gradient_gemm(const LayerContext& context, const Tensor& dy,
                                 const Tensor& dx) const {
  if (!in_fp8(context)) return linear_input_gradient(context.backend, dy, weight_.weight, dx);
  context.backend.gemm({.a = gradient_matrix(context, dy).codes,
                        .b = fp8_weight_transposed_.codes,
                        .c = dx,
                        .transpose_b = true,
                        .blocks_a = operand_blocks(),
                        .blocks_b = weight_blocks()});
}

void Linear::weight_gradient_gemm(const LayerContext& context, const Tensor& x, const Tensor& dy,
                                  const Tensor& dbias, const Fp8Input& kept) const {
  if (!in_fp8(context))
    return linear_weight_gradient(context.backend, x, dy, weight_.gradient, dbias);
  TRIREME_CHECK(kept.transposed.codes, "{}weight: its input is not kept in FP8", spec_.name);
  context.backend.gemm({.a = transposed_gradient_matrix(context, dy).codes,
                        .b = kept.transposed.codes,
                        .c = weight_.gradient,
                        .transpose_b = true,
                        .beta = 1.0,
                        .blocks_a = operand_blocks(),
                        .blocks_b = operand_blocks()});
  if (dbias) context.backend.bias_gradient({.dout = dy, .dbias = dbias});
}

// ---- column-parallel

void ColumnParallelLinear::forward(const LayerContext& context, const Tensor& x, const Tensor& y,
                                   const Fp8Input& kept) const {
  SpGather gather;
  if (in_fp8(context))
    sp_gather(context, x);
  else
    gather = start_sp_gather(context, x);
  forward_gemm(context, x, as_rows(y), bias_.weight, kept, gather.arrivals);
  gather.finish();
}

void ColumnParallelLinear::forward_gathered(const LayerContext& context, const Tensor& x,
                                            const Tensor& y, const Fp8Input& kept) const {
  forward_gemm(context, x, as_rows(y), bias_.weight, kept);
}

void ColumnParallelLinear::input_gradient(const LayerContext& context, const Tensor& dy,
                                          const Tensor& dx, bool add_bias) const {
  Tensor rows = as_rows(dy);
  if (add_bias && sums_with_amax(context, dy)) {
    rows = with_gradient_amax(context, rows);
    context.backend.bias_gradient({.dout = rows, .dbias = bias_.gradient});
  }
  cast_gradient(context, rows, /*transposed_alone=*/false);
  input_gradient_gemm(context, rows, as_rows(dx));
}

void ColumnParallelLinear::weight_gradient(const LayerContext& context, const Tensor& x,
                                           const Tensor& dy, const Tensor* deferred, bool add_bias,
                                           const Fp8Input& kept) const {
  const Tensor dbias = add_bias && !sums_with_amax(context, dy) ? bias_.gradient : Tensor();
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
}

void RowParallelLinear::keep_input(const LayerContext& context, const Tensor& x,
                                   const Fp8Input& kept) const {
  if (in_fp8(context)) cast_input(context, as_rows(x), kept, /*transposed_alone=*/true);
}

Tensor RowParallelLinear::complete_gradient(const LayerContext& context, const Tensor& dy,
                                            const Tensor& full,
                                            const std::function<void()>& meanwhile) const {
  const SpGather gather = start_sp_gather(context, dy, full);
  if (meanwhile) meanwhile();
  gather.finish();
  const Tensor complete = as_rows(context.sp_ranks() > 1 ? full : dy);
  cast_gradient(context, complete, /*transposed_alone=*/false);
  return complete;
}

void RowParallelLinear::weight_gradient(const LayerContext& context, const Tensor& x,
                                        const Tensor& dy, const Tensor& complete, bool deferred,
                                        BiasGradient bias, const Fp8Input& kept) const {
  // A rank that has some of the positions adds their part of the bias's gradient.
  const bool fused = bias == BiasGradient::fused && !deferred && context.sp_ranks() == 1;
  if (bias_.gradient && bias != BiasGradient::elsewhere && !fused)
    context.backend.bias_gradient({.dout = as_rows(dy), .dbias = bias_.gradient});
  if (!deferred)
    weight_gradient_gemm(context, as_rows(x), complete, fused ? bias_.gradient : Tensor(), kept);
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
