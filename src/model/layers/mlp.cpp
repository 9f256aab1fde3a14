#include "model/layers/mlp.hpp"

namespace trireme::model {

// ---- what kinds of two linears have in common

void TwoLinearMlp::declare(ParameterTableBuilder& table) const {
  fc1_.declare(table);
  fc2_.declare(table);
}

void TwoLinearMlp::bind(const ParameterStore& parameters) {
  fc1_.bind(parameters);
  fc2_.bind(parameters);
}

Mlp::Activations TwoLinearMlp::take(Arena& arena, const LayerSizes& sizes) const {
  Activations a;
  a.fc1_out = arena.take(sizes.precision.activations, {sizes.tokens(), fc1_.local_out(sizes)});
  if (!fc2_.in_fp8(sizes))
    a.gelu_out = arena.take(sizes.precision.activations, {sizes.tokens(), local_width(sizes)});
  a.fc1_in = fc1_.take_input(arena, sizes);
  a.fc2_in = fc2_.take_input(arena, sizes);
  return a;
}

void TwoLinearMlp::take_fp8_weights(Arena& arena, const LayerSizes& sizes) {
  fc1_.take_fp8_weight(arena, sizes);
  fc2_.take_fp8_weight(arena, sizes);
}

void TwoLinearMlp::fc1_gradient(const LayerContext& context, const Tensor& x, const Tensor& dfc1,
                                const Activations& saved, const DeferredGradients* deferred) const {
  fc1_.weight_gradient(context, x, dfc1, deferred ? &deferred->first : nullptr,
                       /*add_bias=*/false, saved.fc1_in);
}

void TwoLinearMlp::backward_weights(const LayerContext& context, const LayerWorkspace& workspace,
                                    const Tensor& x, const Activations& saved,
                                    const DeferredGradients& deferred) const {
  fc2_.deferred_weight_gradient(context, fc2_input(saved), deferred.second, workspace.hidden,
                                saved.fc2_in);
  fc1_.deferred_weight_gradient(context, x, deferred.first, saved.fc1_in);
}

void TwoLinearMlp::decode_with(const LayerContext& context, const kernels::DecodeNorm& norm,
                               const Activations& saved, const Tensor& stream,
                               kernels::Activation function, bool gated) const {
  context.backend.decode_linear({.x = as_rows(stream),
                                 .weight = fc1_.weight().weight,
                                 .y = saved.gelu_out,
                                 .norm = norm,
                                 .bias = fc1_.bias().weight,
                                 .function = function,
                                 .gated = gated});
  context.backend.decode_linear({.x = saved.gelu_out,
                                 .weight = fc2_.weight().weight,
                                 .y = as_rows(stream),
                                 .bias = fc2_.bias().weight,
                                 .residual = as_rows(stream)});
}

LayerKinds<MlpFactory>& mlp_kinds() {
  static LayerKinds<MlpFactory> kinds = {
      {"gelu",
       [](const MlpSpec& spec, const LayerPlace& place) -> std::unique_ptr<Mlp> {
         return std::make_unique<GeluMlp>(spec, place, kernels::Activation::gelu_tanh);
       }},
      {"gelu-exact",
       [](const MlpSpec& spec, const LayerPlace& place) -> std::unique_ptr<Mlp> {
         return std::make_unique<GeluMlp>(spec, place, kernels::Activation::gelu);
       }},
      {"swiglu",
       [](const MlpSpec& spec, const LayerPlace& place) -> std::unique_ptr<Mlp> {
         return std::make_unique<GatedMlp>(spec, place, kernels::Activation::silu);
       }},
      {"geglu",
       [](const MlpSpec& spec, const LayerPlace& place) -> std::unique_ptr<Mlp> {
         return std::make_unique<GatedMlp>(spec, place, kernels::Activation::gelu_tanh);
       }},
  };
  return kinds;
}

// ---- SwiGLU and GeGLU

GatedMlp::GatedMlp(const MlpSpec& spec, const LayerPlace& place, kernels::Activation function)
    : TwoLinearMlp({.name = place.name + "mlp/gate_up/",
                    .out = {spec.width, spec.width},
                    .in = place.hidden,
                    .init_std = place.init_std,
                    .bias = false,
                    .fp8 = place.fp8,
                    .fp8_blocks = place.fp8_blocks,
                    .fp8_number = place.fp8_number(2)},
                   {.name = place.name + "mlp/down/",
                    .out = {place.hidden},
                    .in = spec.width,
                    .init_std = place.output_init_std,
                    .bias = false,
                    .fp8 = place.fp8,
                    .fp8_blocks = place.fp8_blocks,
                    .fp8_number = place.fp8_number(3)}),
      function_(function) {}

void GatedMlp::forward(const LayerContext& context, const LayerWorkspace& workspace,
                       const Tensor& x, const Activations& saved, const Tensor& y) const {
  Tensor gated = activated(context, workspace, saved);
  if (fc1_.in_fp8(context)) {
    fc1_.forward(context, x, saved.fc1_out, saved.fc1_in);
    gated = fc2_.with_input_amax(context, gated);
    context.backend.gated_forward({.x = saved.fc1_out, .out = gated, .function = function_});
  } else {
    const SpGather gather = start_sp_gather(context, x);
    context.backend.linear_gated({.x = x,
                                  .weight = fc1_.weight().weight,
                                  .fc1_out = saved.fc1_out,
                                  .gated_out = gated,
                                  .function = function_,
                                  .arrivals = gather.arrivals});
    gather.finish();
  }
  if (y)
    fc2_.forward(context, gated, y, saved.fc2_in);
  else
    fc2_.keep_input(context, gated, saved.fc2_in);
}

Tensor GatedMlp::backward(const LayerContext& context, const LayerWorkspace& workspace,
                          const Tensor& dy, const Activations& saved,
                          const DeferredGradients* deferred) const {
  const Tensor inner = workspace.inner.view({workspace.inner.size()});
  const Shape gate_up = saved.fc1_out.shape;
  const Shape activated{context.tokens(), local_width(context)};
  Tensor dfc1 = front(workspace.inner, gate_up);
  const Tensor dout = inner.rows(gate_up.size(), activated.size()).view(activated);
  const auto input_gradient = [&](const Tensor& complete, const PartArrivals& arrivals) {
    if (!fc2_.in_fp8(context))
      return context.backend.linear_gated_gradient({.dy = complete,
                                                    .weight = fc2_.weight().weight,
                                                    .fc1_out = saved.fc1_out,
                                                    .dout = dout,
                                                    .dfc1_out = dfc1,
                                                    .function = function_,
                                                    .arrivals = arrivals});
    fc2_.input_gradient(context, complete, dout);
    dfc1 = fc1_.with_gradient_amax(context, dfc1);
    context.backend.gated_backward(
        {.dout = dout, .x = saved.fc1_out, .dx = dfc1, .function = function_});
  };
  fc2_.backward_by_parts(context, fc2_input(saved), dy, workspace.mlp_out, deferred != nullptr,
                         BiasGradient::elsewhere, saved.fc2_in, input_gradient);
  fc1_.input_gradient(context, dfc1, workspace.hidden);
  return dfc1;
}

// ---- GELU

GeluMlp::GeluMlp(const MlpSpec& spec, const LayerPlace& place, kernels::Activation gelu)
    : TwoLinearMlp({.name = place.name + "mlp/up/",
                    .out = {spec.width},
                    .in = place.hidden,
                    .init_std = place.init_std,
                    .fp8 = place.fp8,
                    .fp8_blocks = place.fp8_blocks,
                    .fp8_number = place.fp8_number(2)},
                   {.name = place.name + "mlp/down/",
                    .out = {place.hidden},
                    .in = spec.width,
                    .init_std = place.output_init_std,
                    .fp8 = place.fp8,
                    .fp8_blocks = place.fp8_blocks,
                    .fp8_number = place.fp8_number(3)}),
      gelu_(gelu) {}

Mlp::Activations GeluMlp::take(Arena& arena, const LayerSizes& sizes) const {
  Activations a = TwoLinearMlp::take(arena, sizes);
  a.fc2_in.gelu = converts_gelu(sizes);
  return a;
}

void GeluMlp::forward(const LayerContext& context, const LayerWorkspace& workspace, const Tensor& x,
                      const Activations& saved, const Tensor& y) const {
  const bool converts = converts_gelu(context);
  const Tensor fc2_in = converts ? saved.fc1_out : activated(context, workspace, saved);
  if (fc1_.in_fp8(context) || converts) {
    fc1_.forward(context, x, saved.fc1_out, saved.fc1_in);
    if (!converts)
      context.backend.gelu_forward({.x = saved.fc1_out, .out = fc2_in, .function = gelu_});
  } else {
    const SpGather gather = start_sp_gather(context, x);
    context.backend.linear_gelu({.x = x,
                                 .weight = fc1_.weight().weight,
                                 .bias = fc1_.bias().weight,
                                 .fc1_out = saved.fc1_out,
                                 .gelu_out = fc2_in,
                                 .function = gelu_,
                                 .arrivals = gather.arrivals});
    gather.finish();
  }
  if (y)
    fc2_.forward(context, fc2_in, y, saved.fc2_in);
  else
    fc2_.keep_input(context, fc2_in, saved.fc2_in);
}

Tensor GeluMlp::backward(const LayerContext& context, const LayerWorkspace& workspace,
                         const Tensor& dy, const Activations& saved,
                         const DeferredGradients* deferred) const {
  Tensor dfc1 = front(workspace.inner, saved.fc1_out.shape);
  const auto input_gradient = [&](const Tensor& complete, const PartArrivals& arrivals) {
    if (!fc2_.in_fp8(context))
      return context.backend.linear_gelu_gradient({.dy = complete,
                                                   .weight = fc2_.weight().weight,
                                                   .fc1_out = saved.fc1_out,
                                                   .dfc1_out = dfc1,
                                                   .dbias = fc1_.bias().gradient,
                                                   .function = gelu_,
                                                   .arrivals = arrivals});
    fc2_.input_gradient(context, complete, dfc1);
    dfc1 = fc1_.with_gradient_amax(context, dfc1);
    context.backend.gelu_backward({.dout = dfc1,
                                   .x = saved.fc1_out,
                                   .dx = dfc1,
                                   .dbias = fc1_.bias().gradient,
                                   .function = gelu_});
  };
  fc2_.backward_by_parts(context, fc2_input(saved), dy, workspace.mlp_out, deferred != nullptr,
                         BiasGradient::fused, saved.fc2_in, input_gradient);
  fc1_.input_gradient(context, dfc1, workspace.hidden);
  return dfc1;
}

}  // namespace trireme::model
