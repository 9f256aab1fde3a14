// The operations that raise an amax (kernels::Amax), for tests of both backends.
#pragma once

#include <string>

#include "kernels/attention.hpp"
#include "kernels/linear.hpp"
#include "kernels/norms.hpp"

namespace trireme::kernels {

/// Calls check(name, written, run) for each: run(tensor) runs it on `written`, which it writes,
/// adds to or reads, with a place for amax. `bench` makes tensors of rows of `h` elements, and has
/// the backend: see Workbench.
template <typename Bench, typename Check>
void for_each_raised_amax(Bench& bench, std::int64_t rows, std::int64_t h, const Check& check) {
  auto& backend = bench.backend();
  const Shape matrix{rows, h}, stream{rows, 1, h};
  const Tensor x = bench.random(matrix, 1, 2.0), weight = bench.random({h}, 2);
  const Tensor bias = bench.random({h}, 3), gate_up = bench.random({rows, 2 * h}, 4);
  const Tensor rstd = bench.wide_random({rows}, 5), mean = bench.wide_random({rows}, 6);
  const Dropout dropout{.probability = 0.25, .seed = 7, .first_sample = bench.index(11)};
  for (const NormKind kind : {NormKind::layer, NormKind::rms}) {
    const std::string norm = kind == NormKind::rms ? "RMS norm" : "layer norm";
    check(norm, bench.poisoned(matrix), [&](const Tensor& out) {
      backend.layernorm_forward({.x = x,
                                 .weight = weight,
                                 .bias = bias,
                                 .out = out,
                                 .mean = bench.wide_poisoned({rows}),
                                 .rstd = bench.wide_poisoned({rows}),
                                 .kind = kind});
    });
    check(norm + " of a residual sum", bench.poisoned(stream), [&](const Tensor& out) {
      backend.bias_dropout_residual_norm({.sum = {.x = x.view(stream),
                                                  .bias = bias,
                                                  .residual = bench.random(stream, 8),
                                                  .out = bench.poisoned(stream),
                                                  .dropout = dropout},
                                          .weight = weight,
                                          .norm_bias = bias,
                                          .norm = out,
                                          .mean = bench.wide_poisoned({rows}),
                                          .rstd = bench.wide_poisoned({rows}),
                                          .kind = kind});
    });
    check(norm + " backward", bench.random(matrix, 9, 0.1), [&](const Tensor& dx) {
      backend.layernorm_backward({.dout = x,
                                  .x = bench.random(matrix, 10),
                                  .weight = weight,
                                  .mean = mean,
                                  .rstd = rstd,
                                  .dx = dx,
                                  .dweight = bench.wide_random({h}, 12),
                                  .dbias = bench.wide_random({h}, 13),
                                  .kind = kind});
    });
  }
  for (const double probability : {0.0, 0.25})
    check("dropout backward", bench.poisoned(stream), [&](const Tensor& dx) {
      Dropout some = dropout;
      some.probability = probability;
      backend.dropout_backward({.dout = x.view(stream), .dx = dx, .dropout = some});
    });
  check("GELU backward", bench.poisoned(matrix), [&](const Tensor& dx) {
    backend.gelu_backward(
        {.dout = x, .x = bench.random(matrix, 14), .dx = dx, .dbias = bench.wide_random({h}, 15)});
  });
  check("SwiGLU", bench.poisoned(matrix),
        [&](const Tensor& out) { backend.gated_forward({.x = gate_up, .out = out}); });
  check("SwiGLU backward", bench.poisoned(gate_up.shape),
        [&](const Tensor& dx) { backend.gated_backward({.dout = x, .x = gate_up, .dx = dx}); });
  check("bias gradient", bench.random(matrix, 16, 3.0), [&](const Tensor& dout) {
    backend.bias_gradient({.dout = dout, .dbias = bench.wide_random({h}, 17)});
  });
}

/// The same for attention with heads of `d`.
template <typename Bench, typename Check>
void for_attention_amax(Bench& bench, std::int64_t d, const Check& check) {
  constexpr std::int64_t kSequence = 200, kBatch = 2, kHeads = 3;
  check("attention with heads of " + std::to_string(d),
        bench.poisoned({kSequence, kBatch, kHeads * d}), [&](const Tensor& out) {
          bench.backend().attention_forward(
              {.qkv = bench.random({kSequence, kBatch, 3 * kHeads * d}, 18),
               .out = out,
               .lse = bench.wide_poisoned({kBatch, kHeads, kSequence}),
               .heads = kHeads});
        });
}

/// A check for both: what is raised is what Amax finds of the result, and never lowered.
template <typename Bench>
auto amax_check(Bench& bench) {
  return [&bench](const std::string& name, const Tensor& written, const auto& run) {
    const auto raised_from = [&](float before) {
      const Tensor place = bench.number_f32(before);
      Tensor tensor = written;
      tensor.amax = place.as<float>();
      run(tensor);
      return bench.read(place)[0];
    };
    const Tensor expected = bench.number_f32(0.0f);
    const double raised = raised_from(0.0f);
    bench.backend().amax({.x = written, .amax = expected});
    EXPECT_GT(raised, 0.0) << name;
    EXPECT_EQ(raised, bench.read(expected)[0]) << name << " of " << to_string(written.shape);
    EXPECT_EQ(raised_from(3e38f), 3e38f) << name;
  };
}

}  // namespace trireme::kernels
