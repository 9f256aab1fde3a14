#include "model/transformer_layer.hpp"

#include <algorithm>
#include <utility>

#include "kernels/cuda/attention_workspace.hpp"
#include "kernels/cuda/workspace.hpp"
#include "model/residual_stream.hpp"

namespace trireme::model {
namespace {

/// [s, b, n] or [T, n] as [T, n].
Tensor as_rows(const Tensor& tensor) {
  const std::int64_t width = tensor.shape[tensor.shape.rank() - 1];
  return tensor.view({tensor.size() / width, width});
}

/// The head of a workspace tensor, with the wanted shape.
Tensor front(const Tensor& tensor, Shape shape) {
  return tensor.view({tensor.size()}).rows(0, shape.size()).view(shape);
}

/// Whether sublayers end in a dropout.
bool drops(const LayerContext& context, const PassInfo& pass) {
  return pass.training && context.config.hidden_dropout > 0.0;
}

/// The gradient of what a dropout received, given that of its result, on this rank's part of the
/// stream: written to `scratch`, but where there is no dropout and it need not be `kept`,
/// `gradient` itself.
Tensor before_dropout(const LayerContext& context, const Tensor& gradient, const Tensor& scratch,
                      const kernels::Dropout& dropout, bool kept) {
  if (dropout.probability == 0.0 && !kept) return gradient;
  context.backend.dropout_backward({.dout = gradient,
                                    .dx = scratch,
                                    .dropout = dropout,
                                    .first_position = context.first_position()});
  return scratch;
}

/// The end of a sublayer's backward pass, from the gradient `full` of what its norm put out, whose
/// sum over the tensor ranks is still to come: adds that of the weights that read the norm's output
/// by add_weights() and what `args` say. With args.out that output is not kept. A rank alone makes
/// it again with the norm's gradient, almost for nothing; among others normalize() does, and both
/// that and add_weights() run beside the sum. Collective.
template <typename Normalize, typename AddWeights>
void norm_backward(const LayerContext& context, const Tensor& full, kernels::LayerNormBackward args,
                   const Normalize& normalize, const AddWeights& add_weights) {
  if (context.tensor_ranks == 1) {
    context.backend.layernorm_backward(args);
    return add_weights();
  }
  const bool again = static_cast<bool>(std::exchange(args.out, {}));
  const bool gathers = context.stream_parts() > 1;  // in normalize(), which then goes first
  if (again && gathers) normalize();
  const auto sum = start_sum_partial(context, full);
  if (again && !gathers) normalize();
  add_weights();
  sum->wait();
  context.backend.layernorm_backward(args);
}

}  // namespace

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

std::size_t kernel_workspace_bytes(const LayerSizes& sizes) {
  const ModelConfig& config = sizes.config;
  const std::int64_t widest =
      std::max({3 * sizes.local_hidden(), sizes.local_ffn(), config.hidden});
  return std::max(
      {kernels::cuda::kGemmWorkspace + kernels::cuda::bias_gradient_workspace(widest),
       kernels::cuda::column_sums_workspace(widest),
       kernels::cuda::layernorm_backward_workspace(config.hidden),
       kernels::cuda::embedding_backward_workspace(sizes.tokens(), config.hidden),
       kernels::cuda::squared_sum_workspace(), kernels::cuda::cross_entropy_loss_workspace(),
       kernels::cuda::attention_backward_workspace(sizes.dtype, config.sequence, sizes.micro_batch,
                                                   sizes.local_heads(), config.head_dim())});
}

kernels::Dropout dropout_at(const ModelConfig& config, const PassInfo& pass, int layer,
                            DropoutSite site) {
  const double probability =
      site == DropoutSite::attention ? config.attention_dropout : config.hidden_dropout;
  return {.probability = pass.training ? probability : 0.0,
          .seed = config.seed,
          .first_sample = pass.first_sample,
          .layer = static_cast<std::uint32_t>(layer),
          .site = site};
}

Tensor LayerActivations::take_norm(Arena& arena, const LayerSizes& sizes) {
  return arena.take(sizes.dtype, {sizes.tokens(), sizes.config.hidden});
}

LayerActivations LayerActivations::take(Arena& arena, const LayerSizes& sizes,
                                        const std::optional<Tensor>& norm) {
  const std::int64_t s = sizes.config.sequence, b = sizes.micro_batch, T = sizes.tokens();
  const std::int64_t U = sizes.stream_rows()[0];
  const std::int64_t local_h = sizes.local_hidden(), f = sizes.local_ffn();
  const auto take = [&](Shape shape) { return arena.take(sizes.dtype, shape); };
  const auto take_statistics = [&](Shape shape) { return arena.take(wide(sizes.dtype), shape); };
  LayerActivations a;
  a.keeps_norms = !norm;
  a.mean1 = take_statistics({U});
  a.rstd1 = take_statistics({U});
  a.norm1 = norm ? *norm : take_norm(arena, sizes);
  a.qkv = take({s, b, 3 * local_h});
  a.lse = take_statistics({b, sizes.local_heads(), s});
  a.context = take({s, b, local_h});
  a.middle = take(sizes.stream_shape());
  a.mean2 = take_statistics({U});
  a.rstd2 = take_statistics({U});
  a.norm2 = norm ? *norm : take_norm(arena, sizes);
  a.up = take({T, f});
  a.activated = take({T, f});
  return a;
}

LayerWorkspace LayerWorkspace::take(Arena& arena, const LayerSizes& sizes) {
  const std::int64_t s = sizes.config.sequence, b = sizes.micro_batch;
  LayerWorkspace w;
  w.stream = arena.take(sizes.dtype, {s, b, sizes.config.hidden});
  w.wide = arena.take(sizes.dtype, {s * b, std::max(3 * sizes.local_hidden(), sizes.local_ffn())});
  w.narrow = arena.take(sizes.dtype, {s, b, sizes.local_hidden()});
  if (sizes.tensor_ranks > 1) w.lent = arena.take(sizes.dtype, w.stream.shape);
  return w;
}

TransformerLayer::TransformerLayer(const ParameterStore& parameters, int layer) : layer_(layer) {
  const auto get = [&](const char* name) {
    return parameters[fmt::format("layers/{}/{}", layer, name)];
  };
  norm1_weight_ = get("norm1/weight");
  norm1_bias_ = get("norm1/bias");
  qkv_weight_ = get("attention/qkv/weight");
  qkv_bias_ = get("attention/qkv/bias");
  projection_weight_ = get("attention/projection/weight");
  projection_bias_ = get("attention/projection/bias");
  norm2_weight_ = get("norm2/weight");
  norm2_bias_ = get("norm2/bias");
  up_weight_ = get("mlp/up/weight");
  up_bias_ = get("mlp/up/bias");
  down_weight_ = get("mlp/down/weight");
  down_bias_ = get("mlp/down/bias");
}

void TransformerLayer::forward(const LayerContext& context, const LayerWorkspace& workspace,
                               const PassInfo& pass, const Tensor& input,
                               const LayerActivations& saved, const Tensor& output) const {
  project_qkv(context, input, saved);
  context.backend.attention_forward(
      {.qkv = saved.qkv,
       .out = saved.context,
       .lse = saved.lse,
       .heads = context.local_heads(),
       .first_head = context.tensor.rank() * context.local_heads(),
       .dropout = dropout_at(context.config, pass, layer_, DropoutSite::attention),
       .document_start = pass.document_start});
  finish_attention(context, workspace, pass, input, saved);
  mlp_forward(context, workspace, pass, saved, output);
}

void TransformerLayer::forward_cached(const LayerContext& context, const LayerWorkspace& workspace,
                                      const LayerActivations& saved, const Tensor& stream,
                                      const Tensor& keys, const Tensor& values,
                                      std::int64_t past) const {
  const PassInfo pass{.training = false};
  project_qkv(context, stream, saved);
  context.backend.attention_cached({.qkv = saved.qkv,
                                    .keys = keys,
                                    .values = values,
                                    .out = saved.context,
                                    .heads = context.local_heads(),
                                    .past = past});
  finish_attention(context, workspace, pass, stream, saved);
  mlp_forward(context, workspace, pass, saved, stream);
}

void TransformerLayer::project_qkv(const LayerContext& context, const Tensor& input,
                                   const LayerActivations& saved) const {
  normalize1(context, input, saved);
  linear_forward(context.backend, saved.norm1, qkv_weight_.weight, as_rows(saved.qkv),
                 qkv_bias_.weight);
}

void TransformerLayer::normalize1(const LayerContext& context, const Tensor& input,
                                  const LayerActivations& saved) const {
  context.backend.layernorm_forward({.x = as_rows(input),
                                     .weight = norm1_weight_.weight,
                                     .bias = norm1_bias_.weight,
                                     .out = own_part(context, saved.norm1),
                                     .mean = saved.mean1,
                                     .rstd = saved.rstd1,
                                     .eps = context.config.layernorm_eps});
  gather(context, saved.norm1);
}

void TransformerLayer::normalize2(const LayerContext& context,
                                  const LayerActivations& saved) const {
  context.backend.layernorm_forward({.x = as_rows(saved.middle),
                                     .weight = norm2_weight_.weight,
                                     .bias = norm2_bias_.weight,
                                     .out = own_part(context, saved.norm2),
                                     .mean = saved.mean2,
                                     .rstd = saved.rstd2,
                                     .eps = context.config.layernorm_eps});
  gather(context, saved.norm2);
}

void TransformerLayer::finish_attention(const LayerContext& context,
                                        const LayerWorkspace& workspace, const PassInfo& pass,
                                        const Tensor& input, const LayerActivations& saved) const {
  linear_forward(context.backend, as_rows(saved.context), projection_weight_.weight,
                 as_rows(workspace.stream));
  sum_partial(context, workspace.stream);
  context.backend.bias_dropout_residual_norm(
      {.sum = {.x = own_part(context, workspace.stream),
               .bias = projection_bias_.weight,
               .residual = input,
               .out = saved.middle,
               .dropout = dropout_at(context.config, pass, layer_, DropoutSite::projection),
               .first_position = context.first_position()},
       .weight = norm2_weight_.weight,
       .norm_bias = norm2_bias_.weight,
       .norm = own_part(context, saved.norm2),
       .mean = saved.mean2,
       .rstd = saved.rstd2,
       .eps = context.config.layernorm_eps});
}

void TransformerLayer::mlp_forward(const LayerContext& context, const LayerWorkspace& workspace,
                                   const PassInfo& pass, const LayerActivations& saved,
                                   const Tensor& output) const {
  device::Backend& backend = context.backend;
  gather(context, saved.norm2);
  backend.linear_gelu({.x = saved.norm2,
                       .weight = up_weight_.weight,
                       .bias = up_bias_.weight,
                       .up = saved.up,
                       .activated = saved.activated});
  if (!output) return;
  linear_forward(backend, saved.activated, down_weight_.weight, as_rows(workspace.stream));
  sum_partial(context, workspace.stream);
  backend.bias_dropout_residual(
      {.x = own_part(context, workspace.stream),
       .bias = down_bias_.weight,
       .residual = saved.middle,
       .out = output,
       .dropout = dropout_at(context.config, pass, layer_, DropoutSite::mlp),
       .first_position = context.first_position()});
}

void TransformerLayer::backward(const LayerContext& context, const LayerWorkspace& workspace,
                                const PassInfo& pass, const Tensor& input,
                                const LayerActivations& saved, const Tensor& gradient,
                                const ProductGradients* kept) const {
  mlp_backward(context, workspace, pass, saved, gradient, kept);
  attention_backward(context, workspace, pass, input, saved, gradient, kept);
}

void TransformerLayer::backward_weights(const LayerContext& context,
                                        const LayerWorkspace& workspace,
                                        const LayerActivations& saved,
                                        const ProductGradients& kept) const {
  const auto add = [&](const Tensor& x, const Tensor& dy, const Tensor& dweight) {
    linear_weight_gradient(context.backend, as_rows(x), as_rows(dy), dweight);
  };
  add(saved.activated, gather(context, kept.down, workspace.stream), down_weight_.gradient);
  add(saved.norm2, kept.up, up_weight_.gradient);
  add(saved.context, gather(context, kept.projection, workspace.stream),
      projection_weight_.gradient);
  add(saved.norm1, kept.qkv, qkv_weight_.gradient);
}

void TransformerLayer::mlp_backward(const LayerContext& context, const LayerWorkspace& workspace,
                                    const PassInfo& pass, const LayerActivations& saved,
                                    const Tensor& gradient, const ProductGradients* kept) const {
  device::Backend& backend = context.backend;
  // The gradient inside the sublayer, beside that of the residual stream.
  const Tensor beside = workspace.stream, beside_rows = as_rows(beside);
  const Tensor own_ddown =
      before_dropout(context, gradient, kept ? kept->down : own_part(context, beside),
                     dropout_at(context.config, pass, layer_, DropoutSite::mlp), kept != nullptr);
  // A rank that has some of the positions adds their part of the bias's gradient.
  const bool apart = kept || context.stream_parts() > 1;
  if (apart) backend.bias_gradient({.dout = as_rows(own_ddown), .dbias = down_bias_.gradient});
  const Tensor ddown = as_rows(gather(context, own_ddown, beside));
  if (!kept)
    linear_weight_gradient(backend, saved.activated, ddown, down_weight_.gradient,
                           apart ? Tensor() : down_bias_.gradient);
  const Tensor dup = front(workspace.wide, saved.up.shape);
  backend.linear_gelu_gradient({.dy = ddown,
                                .weight = down_weight_.weight,
                                .up = saved.up,
                                .dup = dup,
                                .dbias = up_bias_.gradient});
  linear_input_gradient(backend, dup, up_weight_.weight, beside_rows);
  norm_backward(
      context, beside,
      {.dout = own_part(context, beside_rows),
       .x = as_rows(saved.middle),
       .weight = norm2_weight_.weight,
       .mean = saved.mean2,
       .rstd = saved.rstd2,
       .dx = as_rows(gradient),
       .dweight = norm2_weight_.gradient,
       .dbias = norm2_bias_.gradient,
       // Without dropout the projection's bias has the gradient of the
       // stream, which is complete here.
       .dx_sum = drops(context, pass) ? Tensor() : projection_bias_.gradient,
       .out = saved.keeps_norms ? Tensor() : saved.norm2,
       .bias = norm2_bias_.weight},
      [&] { normalize2(context, saved); },
      [&] {
        if (kept)
          backend.copy(kept->up.data, dup.data, dup.bytes());
        else
          linear_weight_gradient(backend, saved.norm2, dup, up_weight_.gradient);
      });
}

void TransformerLayer::attention_backward(const LayerContext& context,
                                          const LayerWorkspace& workspace, const PassInfo& pass,
                                          const Tensor& input, const LayerActivations& saved,
                                          const Tensor& gradient,
                                          const ProductGradients* kept) const {
  device::Backend& backend = context.backend;
  const ModelConfig& config = context.config;
  const Tensor beside = workspace.stream, beside_rows = as_rows(beside);
  const Tensor own_dprojection =
      before_dropout(context, gradient, kept ? kept->projection : own_part(context, beside),
                     dropout_at(config, pass, layer_, DropoutSite::projection), kept != nullptr);
  if (drops(context, pass))
    backend.bias_gradient({.dout = as_rows(own_dprojection), .dbias = projection_bias_.gradient});
  const Tensor dprojection = as_rows(gather(context, own_dprojection, beside));
  if (!kept)
    linear_weight_gradient(backend, as_rows(saved.context), dprojection,
                           projection_weight_.gradient);
  linear_input_gradient(backend, dprojection, projection_weight_.weight, as_rows(workspace.narrow));
  const Tensor dqkv = front(workspace.wide, saved.qkv.shape);
  backend.attention_backward({.dout = workspace.narrow,
                              .qkv = saved.qkv,
                              .out = saved.context,
                              .lse = saved.lse,
                              .dqkv = dqkv,
                              .heads = context.local_heads(),
                              .first_head = context.tensor.rank() * context.local_heads(),
                              .dropout = dropout_at(config, pass, layer_, DropoutSite::attention),
                              .document_start = pass.document_start});
  linear_input_gradient(backend, as_rows(dqkv), qkv_weight_.weight, beside_rows);
  norm_backward(
      context, beside,
      {.dout = own_part(context, beside_rows),
       .x = as_rows(input),
       .weight = norm1_weight_.weight,
       .mean = saved.mean1,
       .rstd = saved.rstd1,
       .dx = as_rows(gradient),
       .dweight = norm1_weight_.gradient,
       .dbias = norm1_bias_.gradient,
       .out = saved.keeps_norms ? Tensor() : saved.norm1,
       .bias = norm1_bias_.weight},
      [&] { normalize1(context, input, saved); },
      [&] {
        if (kept) {
          backend.bias_gradient({.dout = as_rows(dqkv), .dbias = qkv_bias_.gradient});
          backend.copy(kept->qkv.data, dqkv.data, dqkv.bytes());
        } else {
          linear_weight_gradient(backend, saved.norm1, as_rows(dqkv), qkv_weight_.gradient,
                                 qkv_bias_.gradient);
        }
      });
}

}  // namespace trireme::model
