// A small GPT with random weights.
#pragma once

#include <memory>

#include "core/philox.hpp"
#include "device/backend.hpp"
#include "model/families/registry.hpp"
#include "model/parameters/store.hpp"
#include "model/spec.hpp"

namespace trireme::generate {

/// The model with its weights. All of them are random, biases too, and so large that the logits
/// differ clearly from one context to the next.
struct TinyGpt {
  explicit TinyGpt(const model::Gpt2Config& config_in = default_config(), DType dtype = DType::f32,
                   std::int64_t window = 0)
      : config(config_in),
        spec(spec_of(config, window)),
        layout{.partition = {static_cast<int>(config.layers)}},
        backend(device::make_host_backend(1)),
        parameters(*backend, model::declare_parameters(spec), layout, {}, mixed_precision(dtype)) {
    parameters.initialize(config.seed);
    dispatch(dtype, [&](auto element) {
      auto* weights = parameters.weights().as<decltype(element)>();
      for (std::int64_t i = 0; i < parameters.weights().size(); ++i)
        weights[i] += static_cast<decltype(element)>(0.1 * philox_normal(7, 0, i));
    });
  }

  static model::Gpt2Config default_config() {
    return {.layers = 2,
            .hidden = 24,
            .heads = 3,
            .ffn = 40,
            .sequence = 16,
            .positions = 24,
            .vocab = 37,
            .attention_dropout = 0.1,
            .hidden_dropout = 0.1,
            .init = {.deviation = 0.3},
            .seed = 5};
  }

  /// GPT-2 with sliding-window attention, where `window` is not 0.
  static model::ModelSpec spec_of(const model::Gpt2Config& config, std::int64_t window) {
    model::ModelSpec spec = model::gpt2_spec(config);
    for (model::BlockSpec& block : spec.blocks) block.attention.window = window;
    return spec;
  }

  model::Gpt2Config config;
  model::ModelSpec spec;
  grid::Layout layout;
  std::unique_ptr<device::Backend> backend;
  model::ParameterStore parameters;
};

}  // namespace trireme::generate
