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
  a.gelu_out = arena.take(sizes.precision.activations, {sizes.tokens(), local_width(sizes)});
  return a;
}

void TwoLinearMlp::fc1_gradient(const LayerContext& context, const Tensor& x, const Tensor& dfc1,
                                const DeferredGradients* deferred) const {
  fc1_.weight_gradient(context, x, dfc1, deferred ? &deferred->first : nullptr,
                       /*add_bias=*/false);
}

void TwoLinearMlp::backward_weights(const LayerContext& context, const LayerWorkspace& workspace,
                                    const Tensor& x, const Activations& saved,
                                    const DeferredGradients& deferred) const {
  fc2_.deferred_weight_gradient(context, saved.gelu_out, deferred.second, workspace.hidden);
  fc1_.deferred_weight_gradient(context, x, deferred.first);
}

// ---- GELU

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
  };
  return kinds;
}

GeluMlp::GeluMlp(const MlpSpec& spec, const LayerPlace& place, kernels::Activation gelu)
    : TwoLinearMlp({.name = place.name + "mlp/up/",
                    .out = {spec.width},
                    .in = place.hidden,
                    .init_std = place.init_std},
                   {.name = place.name + "mlp/down/",
                    .out = {place.hidden},
                    .in = spec.width,
                    .init_std = place.output_init_std}),
      gelu_(gelu) {}

void GeluMlp::forward(const LayerContext& context, const Tensor& x, const Activations& saved,
                      const Tensor& y) const {
  fc1_.gather_input(context, x);
  context.backend.linear_gelu({.x = x,
                               .weight = fc1_.weight().weight,
                               .bias = fc1_.bias().weight,
                               .fc1_out = saved.fc1_out,
                               .gelu_out = saved.gelu_out,
                               .function = gelu_});
  if (y) fc2_.forward(context, saved.gelu_out, y);
}

Tensor GeluMlp::backward(const LayerContext& context, const LayerWorkspace& workspace,
                         const Tensor& dy, const Activations& saved,
                         const DeferredGradients* deferred) const {
  const Tensor complete = fc2_.weight_gradient(context, saved.gelu_out, dy, workspace.hidden,
                                               deferred != nullptr, BiasGradient::fused);
  const Tensor dfc1 = front(workspace.inner, saved.fc1_out.shape);
  context.backend.linear_gelu_gradient({.dy = complete,
                                        .weight = fc2_.weight().weight,
                                        .fc1_out = saved.fc1_out,
                                        .dfc1_out = dfc1,
                                        .dbias = fc1_.bias().gradient,
                                        .function = gelu_});
  fc1_.input_gradient(context, dfc1, workspace.hidden);
  return dfc1;
}

}  // namespace trireme::model
