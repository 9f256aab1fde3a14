#include "model/layers/block.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "model/context.hpp"
#include "model/layers/linear.hpp"

namespace trireme::model {
namespace {

LayerPlace place_of(const ModelSpec& spec, int layer) {
  return {.name = fmt::format("layers/{}/", layer),
          .layer = layer,
          .hidden = spec.hidden,
          .init_std = spec.init.deviation,
          .output_init_std = spec.init.output_deviation(layer, spec.layers()),
          .fp8 = spec.blocks[layer].fp8,
          .fp8_blocks = spec.blocks[layer].fp8_blocks};
}

/// The end of a sublayer's backward pass, from the gradient `full` of what its norm put out, whose
/// sum over the tensor ranks is still to come: adds that of the weights that read the norm's output
/// by add_weights() and what `args` say. With args.out that output is not kept. A rank alone
/// recomputes it in the norm's backward kernel, almost for nothing; among others normalize() does,
/// and both that and add_weights() are overlapped with the sum. Collective.
template <typename Normalize, typename AddWeights>
void norm_backward(const LayerContext& context, const Norm& norm, const Tensor& full,
                   NormGradients args, const Normalize& normalize, const AddWeights& add_weights) {
  if (context.tensor_ranks == 1) {
    norm.backward(context, args);
    return add_weights();
  }
  const bool recompute = static_cast<bool>(std::exchange(args.out, {}));
  const bool gathers = context.sp_ranks() > 1;  // in normalize(), which then goes first
  if (recompute && gathers) normalize();
  const auto sum = start_sp_reduce(context, full);
  if (recompute && !gathers) normalize();
  add_weights();
  sum->wait();
  norm.backward(context, args);
}

/// Post-norm: turns `gradient` [S, b, h], that of a norm's output, into that of its input x, in
/// place, and returns that of the sublayer's output, which `residual` added. `scratch` [S, b, h].
Tensor post_norm_gradient(const LayerContext& context, const PassInfo& pass, const Norm& norm,
                          const ResidualAdd& residual, const Tensor& x,
                          const NormStatistics& statistics, const Tensor& gradient,
                          const Tensor& scratch, const DeferredGradients* deferred) {
  context.backend.zero(scratch);
  norm.backward(context, {.dout = gradient, .x = x, .statistics = statistics, .dx = scratch});
  context.backend.copy(gradient.data, scratch.data, gradient.bytes());
  return residual.backward(context, pass, gradient, deferred ? deferred->second : scratch,
                           deferred);
}

/// The end of the backward pass of a sublayer without a norm before it: adds the sum over the
/// tensor ranks of `full` [s, b, h], the gradient of the sublayer's input, to `gradient` [S, b, h],
/// which has that of the residual branch. add_weights() is overlapped with the sum. Collective.
template <typename AddWeights>
void add_input_gradient(const LayerContext& context, const Tensor& full, const Tensor& gradient,
                        const AddWeights& add_weights) {
  const auto sum = context.tensor_ranks > 1 ? start_sp_reduce(context, full) : nullptr;
  add_weights();
  if (sum) sum->wait();
  add(context.backend, gradient, sp_shard(context, full));
}

/// Norm `number` of a block: its names tell norms of sublayers' outputs from others.
std::unique_ptr<Norm> make_block_norm(const ModelSpec& spec, int layer, int number) {
  const BlockSpec& block = spec.blocks[layer];
  const char* prefix = block.norm_placement == NormPlacement::output ? "output_" : "";
  return make_norm(block.norm, fmt::format("layers/{}/{}norm{}/", layer, prefix, number),
                   spec.hidden);
}

}  // namespace

TransformerBlock::TransformerBlock(const ModelSpec& spec, int layer)
    : placement_(spec.blocks[layer].norm_placement),
      norm1_(make_block_norm(spec, layer, 1)),
      norm2_(make_block_norm(spec, layer, 2)),
      attention_(spec.blocks[layer].attention, place_of(spec, layer)),
      mlp_(make_mlp(spec.blocks[layer].mlp, place_of(spec, layer))),
      attention_residual_(spec.blocks[layer].dropout, layer, DropoutSite::projection),
      mlp_residual_(spec.blocks[layer].dropout, layer, DropoutSite::mlp) {}

void TransformerBlock::declare(ParameterTableBuilder& table) const {
  norm1_->declare(table);
  attention_.declare(table);
  norm2_->declare(table);
  mlp_->declare(table);
}

void TransformerBlock::bind(const ParameterStore& parameters) {
  norm1_->bind(parameters);
  attention_.bind(parameters);
  norm2_->bind(parameters);
  mlp_->bind(parameters);
}

Tensor TransformerBlock::take_norm(Arena& arena, const LayerSizes& sizes) {
  return arena.take(sizes.precision.activations, {sizes.tokens(), sizes.hidden});
}

BlockActivations TransformerBlock::take(Arena& arena, const LayerSizes& sizes,
                                        const std::optional<Tensor>& norm) const {
  if (norm && !pre_norm())
    throw DeckError(
        "recompute.granularity = selective recomputes norms before sublayers, but this "
        "model has its norms after them: say none or full");
  BlockActivations a;
  a.keeps_norms = !norm || !reads_norms(sizes);
  if (!pre_norm()) a.attention_in = take_norm(arena, sizes);
  a.norm1 = norm1_->take(arena, sizes);
  a.norm1_out = norm ? *norm : take_norm(arena, sizes);
  a.attention = attention_.take(arena, sizes);
  a.residual_mid = arena.take(sizes.precision.activations, sizes.shard_shape());
  a.norm2 = norm2_->take(arena, sizes);
  if (pre_norm()) a.norm2_out = norm ? *norm : take_norm(arena, sizes);
  a.mlp = mlp_->take(arena, sizes);
  if (!pre_norm()) a.residual_out = arena.take(sizes.precision.activations, sizes.shard_shape());
  return a;
}

bool TransformerBlock::reads_norms(const LayerSizes& sizes) const {
  const auto in_fp8 = [&](const Linear* linear) { return linear->in_fp8(sizes); };
  return !pre_norm() || mlp_->fp8_linears().empty() || !std::ranges::all_of(fp8_linears(), in_fp8);
}

std::vector<const Linear*> TransformerBlock::fp8_linears() const {
  std::vector<const Linear*> linears = attention_.fp8_linears();
  for (const Linear* linear : mlp_->fp8_linears()) linears.push_back(linear);
  return linears;
}

void TransformerBlock::take_fp8_weights(Arena& arena, const LayerSizes& sizes) {
  attention_.take_fp8_weights(arena, sizes);
  mlp_->take_fp8_weights(arena, sizes);
}

void TransformerBlock::cast_weights(const LayerContext& context) const {
  for (const Linear* linear : fp8_linears()) linear->cast_weight(context);
}

std::int64_t TransformerBlock::inner_width(const LayerSizes& sizes) const {
  return std::max(attention_.inner_width(sizes), mlp_->inner_width(sizes));
}

void TransformerBlock::forward(const LayerContext& context, const LayerWorkspace& workspace,
                               const PassInfo& pass, const Tensor& input,
                               const BlockActivations& saved, const Tensor& output,
                               const BlockJoints& joints) const {
  if (output_norm())
    return forward_output_norm(context, workspace, pass, input, saved, output, [&] {
      attention_.forward(context, pass, saved.attention_in, saved.attention, workspace.hidden);
    });
  if (!pre_norm()) return forward_post_norm(context, workspace, pass, input, saved, output);
  const Tensor norm1_out = attention_.qkv().with_input_amax(context, saved.norm1_out);
  if (!joints.has_norm1) norm1_->forward(context, input, saved.norm1, sp_shard(context, norm1_out));
  attention_.forward(context, pass, norm1_out, saved.attention, workspace.hidden);
  finish_forward(context, workspace, pass, input, saved, output, joints);
}

void TransformerBlock::forward_cached(const LayerContext& context, const LayerWorkspace& workspace,
                                      const BlockActivations& saved, const Tensor& stream,
                                      const CachedTokens& tokens) const {
  if (output_norm())
    return forward_output_norm(context, workspace, {.training = false}, stream, saved, stream, [&] {
      attention_.forward_cached(context, saved.attention_in, saved.attention, tokens,
                                workspace.hidden);
    });
  TRIREME_CHECK(pre_norm(), "post-norm attention has no cache");
  const auto norm1 = norm1_->decode_norm(), norm2 = norm2_->decode_norm();
  if (norm1 && norm2 && mlp_->decodes() && context.tensor_ranks == 1 && decodes_fused(context)) {
    attention_.decode(context, *norm1, saved.attention, tokens, stream);
    return mlp_->decode(context, *norm2, saved.mlp, stream);
  }
  norm1_->forward(context, stream, saved.norm1, sp_shard(context, saved.norm1_out));
  attention_.forward_cached(context, saved.norm1_out, saved.attention, tokens, workspace.hidden);
  finish_forward(context, workspace, {.training = false}, stream, saved, stream, {});
}

void TransformerBlock::finish_forward(const LayerContext& context, const LayerWorkspace& workspace,
                                      const PassInfo& pass, const Tensor& input,
                                      const BlockActivations& saved, const Tensor& output,
                                      const BlockJoints& joints) const {
  const Tensor norm2_out = mlp_->with_input_amax(context, saved.norm2_out);
  attention_residual_.sum_forward(context, pass, workspace.hidden,
                                  attention_.projection().bias().weight, input, saved.residual_mid,
                                  {*norm2_, saved.norm2, norm2_out}, /*settles=*/!output);
  mlp_->forward(context, workspace, norm2_out, saved.mlp, output ? workspace.mlp_out : Tensor());
  if (!output) return;
  const Tensor& bias = mlp_->output().bias().weight;
  if (joints.next)
    mlp_residual_.sum_forward(
        context, pass, workspace.mlp_out, bias, saved.residual_mid, output,
        {*joints.next->norm1_, joints.next_saved->norm1,
         joints.next->attention_.qkv().with_input_amax(context, joints.next_saved->norm1_out)},
        /*settles=*/false);
  else
    mlp_residual_.sum_forward(context, pass, workspace.mlp_out, bias, saved.residual_mid, output);
}

void TransformerBlock::backward(const LayerContext& context, const LayerWorkspace& workspace,
                                const PassInfo& pass, const Tensor& input,
                                const BlockActivations& saved, const Tensor& gradient,
                                const BlockGradients* deferred, float* input_amax) const {
  if (output_norm())
    return backward_output_norm(context, workspace, pass, saved, gradient, deferred);
  const DeferredGradients* mlp = deferred ? &deferred->mlp : nullptr;
  const DeferredGradients* attention = deferred ? &deferred->attention : nullptr;
  if (!pre_norm()) {
    mlp_backward_post_norm(context, workspace, pass, saved, gradient, mlp);
    return attention_backward_post_norm(context, workspace, pass, saved, gradient, attention);
  }
  mlp_backward(context, workspace, pass, saved, gradient, mlp);
  attention_backward(context, workspace, pass, input, saved, gradient, attention, input_amax);
}

float* TransformerBlock::gradient_amax(const LayerContext& context, const PassInfo& pass,
                                       const Tensor& gradient) const {
  if (!pre_norm() || mlp_residual_.drops(pass)) return nullptr;
  Tensor dy = gradient;
  dy.amax = nullptr;
  return mlp_->with_gradient_amax(context, dy).amax;
}

void TransformerBlock::backward_weights(const LayerContext& context,
                                        const LayerWorkspace& workspace,
                                        const BlockActivations& saved,
                                        const BlockGradients& deferred) const {
  mlp_->backward_weights(context, workspace, pre_norm() ? saved.norm2_out : saved.norm1_out,
                         saved.mlp, deferred.mlp);
  attention_.backward_weights(context, workspace, pre_norm() ? saved.norm1_out : saved.attention_in,
                              saved.attention, deferred.attention);
}

std::function<void()> TransformerBlock::overlapped_fc2_gradient(
    const LayerContext& context, const LayerWorkspace& workspace, const BlockActivations& saved,
    const DeferredGradients* deferred) const {
  if (deferred) return {};
  return
      [this, &context, &workspace, &saved] { mlp_->fc2_gradient(context, workspace, saved.mlp); };
}

void TransformerBlock::mlp_backward(const LayerContext& context, const LayerWorkspace& workspace,
                                    const PassInfo& pass, const BlockActivations& saved,
                                    const Tensor& gradient,
                                    const DeferredGradients* deferred) const {
  const Tensor& full = workspace.hidden;
  const Tensor scratch = deferred ? deferred->second : sp_shard(context, workspace.mlp_out);
  const Tensor dy = mlp_residual_.backward(context, pass, gradient,
                                           mlp_->with_gradient_amax(context, scratch), deferred);
  const Tensor dfc1 = mlp_->backward(context, workspace, dy, saved.mlp, deferred);
  norm_backward(
      context, *norm2_, full,
      {.dout = sp_shard(context, full),
       .x = saved.residual_mid,
       .statistics = saved.norm2,
       .dx = attention_gradient(context, pass, gradient),
       // Without dropout the projection's bias has the gradient of the residual stream, which is
       // complete here.
       .dx_sum =
           attention_residual_.drops(pass) ? Tensor() : attention_.projection().bias().gradient,
       .out = saved.keeps_norms ? Tensor() : saved.norm2_out},
      [&] {
        norm2_->forward(context, saved.residual_mid, saved.norm2,
                        sp_shard(context, saved.norm2_out));
        sp_gather(context, saved.norm2_out);
      },
      [&] { mlp_->fc1_gradient(context, saved.norm2_out, dfc1, saved.mlp, deferred); });
}

Tensor TransformerBlock::attention_gradient(const LayerContext& context, const PassInfo& pass,
                                            const Tensor& gradient) const {
  Tensor dy = gradient;
  dy.amax = nullptr;
  return attention_residual_.drops(pass) ? dy
                                         : attention_.projection().with_gradient_amax(context, dy);
}

void TransformerBlock::attention_backward(const LayerContext& context,
                                          const LayerWorkspace& workspace, const PassInfo& pass,
                                          const Tensor& input, const BlockActivations& saved,
                                          const Tensor& gradient, const DeferredGradients* deferred,
                                          float* input_amax) const {
  const Tensor& full = workspace.hidden;
  const Tensor scratch = deferred ? deferred->second : sp_shard(context, full);
  const Tensor dy = attention_residual_.backward(
      context, pass, attention_gradient(context, pass, gradient),
      attention_.projection().with_gradient_amax(context, scratch), deferred);
  const Tensor dqkv =
      attention_.backward(context, workspace, pass, dy, saved.attention,
                          /*add_bias=*/attention_residual_.drops(pass), deferred,
                          overlapped_fc2_gradient(context, workspace, saved, deferred));
  Tensor dx = gradient;
  dx.amax = input_amax;
  norm_backward(
      context, *norm1_, full,
      {.dout = sp_shard(context, full),
       .x = input,
       .statistics = saved.norm1,
       .dx = dx,
       .out = saved.keeps_norms ? Tensor() : saved.norm1_out},
      [&] {
        norm1_->forward(context, input, saved.norm1, sp_shard(context, saved.norm1_out));
        sp_gather(context, saved.norm1_out);
      },
      [&] { attention_.qkv_gradient(context, saved.norm1_out, dqkv, saved.attention, deferred); });
}

void TransformerBlock::forward_post_norm(const LayerContext& context,
                                         const LayerWorkspace& workspace, const PassInfo& pass,
                                         const Tensor& input, const BlockActivations& saved,
                                         const Tensor& output) const {
  const Tensor& x = saved.attention_in;
  context.backend.copy(sp_shard(context, x).data, input.data, input.bytes());
  attention_.forward(context, pass, x, saved.attention, workspace.hidden);
  attention_residual_.sum_forward(context, pass, workspace.hidden,
                                  attention_.projection().bias().weight, input, saved.residual_mid,
                                  {*norm1_, saved.norm1, saved.norm1_out}, /*settles=*/false);
  mlp_->forward(context, workspace, saved.norm1_out, saved.mlp, workspace.mlp_out);
  mlp_residual_.sum_forward(context, pass, workspace.mlp_out, mlp_->output().bias().weight,
                            sp_shard(context, saved.norm1_out).view(context.shard_shape()),
                            saved.residual_out);
  // Without an output the statistics alone are needed.
  norm2_->forward(context, saved.residual_out, saved.norm2,
                  output ? output : sp_shard(context, workspace.hidden));
}

void TransformerBlock::mlp_backward_post_norm(const LayerContext& context,
                                              const LayerWorkspace& workspace, const PassInfo& pass,
                                              const BlockActivations& saved, const Tensor& gradient,
                                              const DeferredGradients* deferred) const {
  const Tensor dy =
      post_norm_gradient(context, pass, *norm2_, mlp_residual_, saved.residual_out, saved.norm2,
                         gradient, sp_shard(context, workspace.mlp_out), deferred);
  const Tensor dfc1 = mlp_->backward(context, workspace, dy, saved.mlp, deferred);
  add_input_gradient(context, workspace.hidden, gradient, [&] {
    mlp_->fc1_gradient(context, saved.norm1_out, dfc1, saved.mlp, deferred);
  });
}

void TransformerBlock::attention_backward_post_norm(const LayerContext& context,
                                                    const LayerWorkspace& workspace,
                                                    const PassInfo& pass,
                                                    const BlockActivations& saved,
                                                    const Tensor& gradient,
                                                    const DeferredGradients* deferred) const {
  const Tensor dy =
      post_norm_gradient(context, pass, *norm1_, attention_residual_, saved.residual_mid,
                         saved.norm1, gradient, sp_shard(context, workspace.hidden), deferred);
  const Tensor dqkv = attention_.backward(
      context, workspace, pass, dy, saved.attention,
      /*add_bias=*/true, deferred, overlapped_fc2_gradient(context, workspace, saved, deferred));
  add_input_gradient(context, workspace.hidden, gradient, [&] {
    attention_.qkv_gradient(context, saved.attention_in, dqkv, saved.attention, deferred);
  });
}

// ---- norms of the sublayers' outputs: x += norm1(attention(x)); x += norm2(mlp(x)). Without
// dropout and biases, which require_implemented() refuses.

template <typename Attend>
void TransformerBlock::forward_output_norm(const LayerContext& context,
                                           const LayerWorkspace& workspace, const PassInfo& pass,
                                           const Tensor& input, const BlockActivations& saved,
                                           const Tensor& output, const Attend& attend) const {
  // A sublayer's output, then its norm.
  const auto normalize = [&](const Norm& norm, const Tensor& full, const Tensor& kept,
                             const NormStatistics& statistics) {
    sp_reduce(context, full);
    const Tensor own = sp_shard(context, full);
    context.backend.copy(kept.data, own.data, own.bytes());
    norm.forward(context, kept, statistics, own);
  };
  const Tensor mid = sp_shard(context, saved.norm1_out).view(context.shard_shape());
  context.backend.copy(sp_shard(context, saved.attention_in).data, input.data, input.bytes());
  attend();
  normalize(*norm1_, workspace.hidden, saved.residual_mid, saved.norm1);
  attention_residual_.forward(context, pass, workspace.hidden, {}, input, mid);
  mlp_->forward(context, workspace, saved.norm1_out, saved.mlp, workspace.mlp_out);
  normalize(*norm2_, workspace.mlp_out, saved.residual_out, saved.norm2);
  if (output) mlp_residual_.forward(context, pass, workspace.mlp_out, {}, mid, output);
}

void TransformerBlock::backward_output_norm(const LayerContext& context,
                                            const LayerWorkspace& workspace, const PassInfo& pass,
                                            const BlockActivations& saved, const Tensor& gradient,
                                            const BlockGradients* deferred) const {
  const Tensor& full = workspace.hidden;
  // Writes dy, that of a sublayer's output, and keeps it where it is deferred.
  const auto norm_gradient = [&](const Norm& norm, const Tensor& dy, const Tensor& x,
                                 const NormStatistics& statistics,
                                 const DeferredGradients* sublayer) {
    context.backend.zero(dy);
    norm.backward(context, {.dout = gradient, .x = x, .statistics = statistics, .dx = dy});
    if (sublayer) context.backend.copy(sublayer->second.data, dy.data, dy.bytes());
  };
  const DeferredGradients* mlp = deferred ? &deferred->mlp : nullptr;
  const Tensor dmlp = sp_shard(context, workspace.mlp_out);
  norm_gradient(*norm2_, dmlp, saved.residual_out, saved.norm2, mlp);
  const Tensor dfc1 = mlp_->backward(context, workspace, dmlp, saved.mlp, mlp);
  add_input_gradient(context, full, gradient,
                     [&] { mlp_->fc1_gradient(context, saved.norm1_out, dfc1, saved.mlp, mlp); });

  const DeferredGradients* attention = deferred ? &deferred->attention : nullptr;
  const Tensor dattention = sp_shard(context, full);
  norm_gradient(*norm1_, dattention, saved.residual_mid, saved.norm1, attention);
  const Tensor dqkv = attention_.backward(
      context, workspace, pass, dattention, saved.attention,
      /*add_bias=*/false, attention, overlapped_fc2_gradient(context, workspace, saved, attention));
  add_input_gradient(context, full, gradient, [&] {
    attention_.qkv_gradient(context, saved.attention_in, dqkv, saved.attention, attention);
  });
}

LayerWorkspace take_workspace(Arena& arena, const LayerSizes& sizes,
                              const std::vector<const TransformerBlock*>& blocks) {
  std::int64_t inner = 0, heads = 0;
  for (const TransformerBlock* block : blocks) {
    inner = std::max(inner, block->inner_width(sizes));
    heads = std::max(heads, block->attention().heads_width(sizes));
  }
  LayerWorkspace w;
  w.hidden = arena.take(sizes.precision.activations, sizes.hidden_shape());
  w.inner = arena.take(sizes.precision.activations, {sizes.tokens(), inner});
  w.heads = arena.take(sizes.precision.activations, {sizes.sequence, sizes.micro_batch, heads});
  const auto another = [&] { return arena.take(sizes.precision.activations, w.hidden.shape); };
  w.mlp_out = sizes.sp_ranks() > 1 ? another() : w.hidden;
  if (sizes.tensor_ranks > 1) w.staging = another();
  return w;
}

}  // namespace trireme::model
