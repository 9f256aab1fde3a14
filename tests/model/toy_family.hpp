// A family of models that src knows nothing of: its own norm and its own MLP, registered from here,
// in a spec that no deck describes. What trains it on every layout is what trains the others.
#pragma once

#include <cmath>
#include <string>

#include "model/layers/block.hpp"
#include "model/spec.hpp"

namespace trireme::test {

/// Root-mean-square norm with a weight and no bias: y = w x / sqrt(mean(x^2) + eps). Computes on
/// the host, in fp32 or fp64.
class ToyNorm final : public model::Norm {
 public:
  ToyNorm(const model::NormSpec& spec, std::string name, std::int64_t hidden)
      : name_(std::move(name)), hidden_(hidden), eps_(spec.eps) {}

  void declare(model::ParameterTableBuilder& table) const override {
    table.add({.name = name_ + "scale",
               .shape = {hidden_},
               .init = model::Init::ones,
               .sequence_parallel = true});
  }
  void bind(const model::ParameterStore& parameters) override {
    scale_ = parameters[name_ + "scale"];
  }
  model::NormStatistics take(model::Arena& arena, const model::LayerSizes& sizes) const override {
    return {.mean = {}, .rstd = arena.take(sizes.precision.activations, {sizes.shard_rows()[0]})};
  }

  void forward(const model::LayerContext&, const Tensor& x, const model::NormStatistics& statistics,
               const Tensor& out) const override {
    dispatch(x.dtype, [&](auto zero) { write<decltype(zero)>(x, statistics.rstd, out); });
  }
  void backward(const model::LayerContext&, const model::NormGradients& args) const override {
    dispatch(args.x.dtype, [&](auto zero) { add<decltype(zero)>(args); });
    if (args.out)
      dispatch(args.x.dtype,
               [&](auto zero) { write<decltype(zero)>(args.x, args.statistics.rstd, args.out); });
  }

 private:
  template <typename T>
  void write(const Tensor& x_in, const Tensor& rstd, const Tensor& out) const {
    const T *x = x_in.as<T>(), *w = scale_.weight.as<T>();
    for (std::int64_t row = 0; row < rstd.size(); ++row, x += hidden_) {
      double squares = 0.0;
      for (std::int64_t i = 0; i < hidden_; ++i) squares += static_cast<double>(x[i]) * x[i];
      const double r = 1.0 / std::sqrt(squares / static_cast<double>(hidden_) + eps_);
      rstd.as<T>()[row] = static_cast<T>(r);
      for (std::int64_t i = 0; i < hidden_; ++i)
        out.as<T>()[row * hidden_ + i] = static_cast<T>(x[i] * r * w[i]);
    }
  }

  // With g = dout w and x' = x r: dx = r (g - x' mean(g x')), dw = sum over rows of dout x'.
  template <typename T>
  void add(const model::NormGradients& args) const {
    const T* w = scale_.weight.as<T>();
    for (std::int64_t row = 0; row < args.statistics.rstd.size(); ++row) {
      const double r = args.statistics.rstd.as<T>()[row];
      const T *x = args.x.as<T>() + row * hidden_, *dout = args.dout.as<T>() + row * hidden_;
      T* dx = args.dx.as<T>() + row * hidden_;
      double mean = 0.0;
      for (std::int64_t i = 0; i < hidden_; ++i) mean += dout[i] * w[i] * x[i] * r;
      mean /= static_cast<double>(hidden_);
      for (std::int64_t i = 0; i < hidden_; ++i) {
        dx[i] += static_cast<T>(r * (dout[i] * w[i] - x[i] * r * mean));
        scale_.gradient.as<T>()[i] += static_cast<T>(dout[i] * x[i] * r);
        if (args.dx_sum) args.dx_sum.as<T>()[i] += dx[i];
      }
    }
  }

  std::string name_;
  std::int64_t hidden_;
  double eps_;
  model::WeightGradient scale_;
};

/// y = (silu(x G^T) * (x U^T)) W^T + b: gate and up are row blocks of one weight without a bias.
/// Computes its activation function on the host, in fp32 or fp64.
class ToyMlp final : public model::TwoLinearMlp {
 public:
  ToyMlp(const model::MlpSpec& spec, const model::LayerPlace& place)
      : TwoLinearMlp({.name = place.name + "mlp/gate_up/",
                      .out = {spec.width, spec.width},
                      .in = place.hidden,
                      .init_std = place.init_std,
                      .bias = false},
                     {.name = place.name + "mlp/out/",
                      .out = {place.hidden},
                      .in = spec.width,
                      .init_std = place.output_init_std}) {}

  /// The gradients of gate, up and of what the second linear reads.
  std::int64_t inner_width(const model::LayerSizes& sizes) const override {
    return 3 * local_width(sizes);
  }

  void forward(const model::LayerContext& context, const model::LayerWorkspace&, const Tensor& x,
               const Activations& saved, const Tensor& y) const override {
    fc1_.forward(context, x, saved.fc1_out);
    dispatch(x.dtype, [&](auto zero) {
      using T = decltype(zero);
      for_each<T>(saved.fc1_out, [&](std::int64_t i, const T& gate, const T& up) {
        saved.gelu_out.as<T>()[i] = static_cast<T>(gate * sigmoid(gate) * up);
      });
    });
    if (y) fc2_.forward(context, saved.gelu_out, y);
  }

  Tensor backward(const model::LayerContext& context, const model::LayerWorkspace& workspace,
                  const Tensor& dy, const Activations& saved,
                  const model::DeferredGradients* deferred) const override {
    const Tensor both = model::front(workspace.inner, {3, saved.gelu_out.size()});
    const Tensor dfc1 = both.rows(0, 2).view(saved.fc1_out.shape);
    const Tensor dout = both.rows(2, 1).view(saved.gelu_out.shape);
    const Tensor complete = fc2_.complete_gradient(context, dy, workspace.hidden);
    fc2_.weight_gradient(context, saved.gelu_out, dy, complete, deferred != nullptr,
                         model::BiasGradient::fused);
    fc2_.input_gradient(context, complete, dout);
    dispatch(dy.dtype, [&](auto zero) {
      using T = decltype(zero);
      const std::int64_t width = saved.gelu_out.shape[1];
      for_each<T>(saved.fc1_out, [&](std::int64_t i, const T& gate, const T& up) {
        const double s = sigmoid(gate), da = dout.as<T>()[i];
        T* d = dfc1.as<T>() + (&gate - saved.fc1_out.as<T>());
        d[0] = static_cast<T>(da * up * s * (1.0 + gate * (1.0 - s)));
        d[width] = static_cast<T>(da * gate * s);
      });
    });
    fc1_.input_gradient(context, dfc1, workspace.hidden);
    return dfc1;
  }

 private:
  static double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

  /// Calls function(index in [T, f / t], gate, up) for fc1_out [T, 2 f / t].
  template <typename T, typename Function>
  static void for_each(const Tensor& fc1_out, const Function& function) {
    const std::int64_t width = fc1_out.shape[1] / 2;
    for (std::int64_t i = 0; i < fc1_out.shape[0] * width; ++i) {
      const T* gate = fc1_out.as<T>() + i / width * 2 * width + i % width;
      function(i, gate[0], gate[width]);
    }
  }
};

/// ToyMlp with a gate for each kGroup units of up, from a weight of its own in at most two shards:
/// more tensor ranks hold copies, as of key and value heads that several query heads share.
class ToyGroupedMlp final : public model::TwoLinearMlp {
 public:
  static constexpr int kGroup = 4, kMaxShards = 2;

  ToyGroupedMlp(const model::MlpSpec& spec, const model::LayerPlace& place)
      : TwoLinearMlp({.name = place.name + "mlp/up/",
                      .out = {spec.width},
                      .in = place.hidden,
                      .init_std = place.init_std,
                      .bias = false},
                     {.name = place.name + "mlp/out/",
                      .out = {place.hidden},
                      .in = spec.width,
                      .init_std = place.output_init_std}),
        gate_({.name = place.name + "mlp/gate/",
               .out = {{spec.width / kGroup, kMaxShards}},
               .in = place.hidden,
               .init_std = place.init_std,
               .bias = false}) {}

  void declare(model::ParameterTableBuilder& table) const override {
    TwoLinearMlp::declare(table);
    gate_.declare(table);
  }
  void bind(const model::ParameterStore& parameters) override {
    TwoLinearMlp::bind(parameters);
    gate_.bind(parameters);
  }
  /// fc1_out has up [T, f / t], then the gates [T, f / (group t)], or the shard's.
  Activations take(model::Arena& arena, const model::LayerSizes& sizes) const override {
    const std::int64_t outputs = fc1_.local_out(sizes) + gate_.local_out(sizes);
    return {
        .fc1_out = arena.take(sizes.precision.activations, {sizes.tokens(), outputs}),
        .gelu_out = arena.take(sizes.precision.activations, {sizes.tokens(), local_width(sizes)})};
  }
  std::int64_t inner_width(const model::LayerSizes& sizes) const override {
    return 2 * local_width(sizes) + gate_.local_out(sizes);
  }

  void forward(const model::LayerContext& context, const model::LayerWorkspace&, const Tensor& x,
               const Activations& saved, const Tensor& y) const override {
    const auto [up, gate] = split(context, saved.fc1_out);
    fc1_.forward(context, x, up);
    gate_.forward_gathered(context, x, gate);
    dispatch(x.dtype, [&, up = up, gate = gate](auto zero) {
      using T = decltype(zero);
      for_each(context, [&](std::int64_t i, std::int64_t unit) {
        const double g = gate.as<T>()[unit];
        saved.gelu_out.as<T>()[i] = static_cast<T>(g * sigmoid(g) * up.as<T>()[i]);
      });
    });
    if (y) fc2_.forward(context, saved.gelu_out, y);
  }

  Tensor backward(const model::LayerContext& context, const model::LayerWorkspace& workspace,
                  const Tensor& dy, const Activations& saved,
                  const model::DeferredGradients* deferred) const override {
    const Tensor dfc1 = model::front(workspace.inner, saved.fc1_out.shape);
    const Tensor all = workspace.inner.view({workspace.inner.size()});
    const Tensor dout = all.rows(dfc1.size(), saved.gelu_out.size()).view(saved.gelu_out.shape);
    const Tensor complete = fc2_.complete_gradient(context, dy, workspace.hidden);
    fc2_.weight_gradient(context, saved.gelu_out, dy, complete, deferred != nullptr,
                         model::BiasGradient::fused);
    fc2_.input_gradient(context, complete, dout);
    const auto [up, gate] = split(context, saved.fc1_out);
    const auto [dup, dgate] = split(context, dfc1);
    context.backend.zero(dgate);
    dispatch(dy.dtype, [&, up = up, gate = gate, dup = dup, dgate = dgate](auto zero) {
      using T = decltype(zero);
      for_each(context, [&](std::int64_t i, std::int64_t unit) {
        const double g = gate.as<T>()[unit], s = sigmoid(g), da = dout.as<T>()[i];
        dup.as<T>()[i] = static_cast<T>(da * g * s);
        dgate.as<T>()[unit] += static_cast<T>(da * up.as<T>()[i] * s * (1.0 + g * (1.0 - s)));
      });
    });
    // The gradient of x has a part from each of the two weights.
    model::linear_input_gradient(context.backend, dup, fc1_.weight().weight,
                                 model::as_rows(workspace.hidden));
    context.backend.gemm({.a = dgate,
                          .b = gate_.weight().weight,
                          .c = model::as_rows(workspace.hidden),
                          .beta = 1.0});
    return dfc1;
  }
  void fc1_gradient(const model::LayerContext& context, const Tensor& x, const Tensor& dfc1,
                    const Activations&, const model::DeferredGradients* deferred) const override {
    if (deferred)
      context.backend.copy(deferred->first.data, dfc1.data, dfc1.bytes());
    else
      add_weights(context, x, dfc1);
  }
  void backward_weights(const model::LayerContext& context, const model::LayerWorkspace& workspace,
                        const Tensor& x, const Activations& saved,
                        const model::DeferredGradients& deferred) const override {
    fc2_.deferred_weight_gradient(context, saved.gelu_out, deferred.second, workspace.hidden);
    add_weights(context, x, deferred.first);
  }

 private:
  static double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

  /// fc1_out or its gradient as up and gates.
  std::pair<Tensor, Tensor> split(const model::LayerSizes& sizes, const Tensor& both) const {
    const std::int64_t T = sizes.tokens(), ups = fc1_.local_out(sizes),
                       gates = gate_.local_out(sizes);
    const Tensor all = both.view({both.size()});
    return {all.rows(0, T * ups).view({T, ups}), all.rows(T * ups, T * gates).view({T, gates})};
  }
  void add_weights(const model::LayerContext& context, const Tensor& x, const Tensor& dfc1) const {
    const auto [dup, dgate] = split(context, dfc1);
    fc1_.weight_gradient(context, x, dup, nullptr, /*add_bias=*/false);
    gate_.weight_gradient(context, x, dgate, nullptr, /*add_bias=*/false);
  }
  /// Calls function(index in up [T, f / t], index of its gate).
  template <typename Function>
  void for_each(const model::LayerContext& context, const Function& function) const {
    const std::int64_t ups = fc1_.local_out(context), gates = gate_.local_out(context);
    for (std::int64_t i = 0; i < context.tokens() * ups; ++i) {
      const std::int64_t unit = (context.tensor.rank() * ups + i % ups) / kGroup;
      function(i, i / ups * gates + unit % gates);
    }
  }

  model::ColumnParallelLinear gate_;
};

/// A model of the toy family: attention that sees later tokens, heads that are not hidden / heads
/// wide, an output projection of its own; every second block is a GPT-2's, the others have
/// different MLPs.
inline model::ModelSpec toy_spec(double dropout) {
  static const bool registered = [] {
    model::norm_kinds().add("toy",
                            [](const model::NormSpec& spec, const std::string& name,
                               std::int64_t hidden) -> std::unique_ptr<model::Norm> {
                              return std::make_unique<ToyNorm>(spec, name, hidden);
                            });
    model::mlp_kinds().add("toy",
                           [](const model::MlpSpec& spec,
                              const model::LayerPlace& place) -> std::unique_ptr<model::Mlp> {
                             return std::make_unique<ToyMlp>(spec, place);
                           });
    model::mlp_kinds().add("toy-grouped",
                           [](const model::MlpSpec& spec,
                              const model::LayerPlace& place) -> std::unique_ptr<model::Mlp> {
                             return std::make_unique<ToyGroupedMlp>(spec, place);
                           });
    return true;
  }();
  (void)registered;
  const model::NormSpec norm{.kind = "toy", .eps = 1e-3};
  model::ModelSpec spec{.hidden = 32,
                        .sequence = 16,
                        .vocab = 61,
                        .embedding = {.positions = 18, .norm = norm, .dropout = dropout},
                        .head = {.norm = norm, .tied = false},
                        .init = {.deviation = 0.1}};
  for (int layer = 0; layer < 4; ++layer) {
    model::BlockSpec block{.norm = norm,
                           .attention = {.heads = 4,
                                         .kv_heads = 4,
                                         .head_dim = 6,
                                         .causal = false,
                                         .dropout = dropout},
                           .mlp = {.kind = "toy", .width = 24 + 8 * layer},
                           .dropout = dropout};
    if (layer == 2) block.mlp = {.kind = "toy-grouped", .width = 32};
    if (layer % 2 == 1) block.norm.kind = "layernorm", block.mlp.kind = "gelu";
    spec.blocks.push_back(block);
  }
  return spec;
}

}  // namespace trireme::test
