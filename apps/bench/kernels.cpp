#include <vector>

#include "app.hpp"
#include "bench/commands.hpp"
#include "bench/gpt2.hpp"
#include "bench/gpu/commands.hpp"

namespace trireme::bench {
namespace {

constexpr const char* kKernelsProgram = "trireme-bench kernels";
constexpr const char* kKernelsUsage =
    "Usage: trireme-bench kernels [options]\n"
    "Times every operation of a GPT's training step against what the host or the GPU can do.\n\n";

constexpr double kFloat = 4.0;  // bytes
const Shape kActivation{kSequence, kBatch, kHidden};

kernels::Dropout dropout_at(double probability, DropoutSite site) {
  return {.probability = probability, .seed = 1, .first_sample = 0, .layer = 1, .site = site};
}

void measure_attention(Meter& meter, double probability) {
  const Tensor qkv = meter.tensor({kSequence, kBatch, 3 * kHidden});
  const Tensor dqkv = meter.tensor(qkv.shape);
  const Tensor out = meter.tensor(kActivation), dout = meter.tensor(kActivation);
  const Tensor lse = meter.tensor({kBatch, kHeads, kSequence});
  const kernels::Dropout dropout = dropout_at(probability, DropoutSite::attention);
  // Two GEMMs forward and five backward, half of each masked.
  const double flops = 1.0 * kBatch * kSequence * kSequence * kHidden;
  meter.gemm("attention forward", 2 * flops, kLayers, [&] {
    meter.backend().attention_forward(
        {.qkv = qkv, .out = out, .lse = lse, .heads = kHeads, .dropout = dropout});
  });
  meter.gemm("attention backward", 5 * flops, kLayers, [&] {
    meter.backend().attention_backward({.dout = dout,
                                        .qkv = qkv,
                                        .out = out,
                                        .lse = lse,
                                        .dqkv = dqkv,
                                        .heads = kHeads,
                                        .dropout = dropout});
  });
  meter.clear();
}

void measure_rows(Meter& meter, double probability) {
  device::Backend& backend = meter.backend();
  const Tensor x = meter.tensor(kActivation), y = meter.tensor(kActivation);
  const Tensor z = meter.tensor(kActivation);
  const Tensor weight = meter.tensor({kHidden}), bias = meter.tensor({kHidden});
  const Tensor mean = meter.tensor({kTokens}), rstd = meter.tensor({kTokens});
  const double bytes = kFloat * kTokens * kHidden;
  const double norms = 2 * kLayers + 1;
  meter.stream("layernorm forward", 2 * bytes, norms, [&] {
    backend.layernorm_forward(
        {.x = x, .weight = weight, .bias = bias, .out = y, .mean = mean, .rstd = rstd});
  });
  meter.stream("layernorm backward", 4 * bytes, norms, [&] {
    backend.layernorm_backward({.dout = y,
                                .x = x,
                                .weight = weight,
                                .mean = mean,
                                .rstd = rstd,
                                .dx = z,
                                .dweight = weight,
                                .dbias = bias});
  });
  const kernels::Dropout dropout = dropout_at(probability, DropoutSite::mlp);
  meter.stream("bias dropout residual", 3 * bytes, 2 * kLayers, [&] {
    backend.bias_dropout_residual(
        {.x = x, .bias = bias, .residual = y, .out = z, .dropout = dropout});
  });
  meter.stream("dropout backward", 2 * bytes, 2 * kLayers,
               [&] { backend.dropout_backward({.dout = x, .dx = z, .dropout = dropout}); });
  meter.stream("bias gradient of 768", bytes, 2 * kLayers,
               [&] { backend.bias_gradient({.dout = x, .dbias = bias}); });
  meter.clear();
}

void measure_mlp(Meter& meter) {
  device::Backend& backend = meter.backend();
  const Tensor x = meter.tensor({kTokens, kFfn}), y = meter.tensor({kTokens, kFfn});
  const Tensor bias = meter.tensor({kFfn});
  const double bytes = kFloat * kTokens * kFfn;
  meter.stream("gelu forward", 2 * bytes, kLayers,
               [&] { backend.gelu_forward({.x = x, .out = y}); });
  meter.stream("gelu backward", 4 * bytes, kLayers,
               [&] { backend.gelu_backward({.dout = y, .x = x, .dx = y, .dbias = bias}); });
  const Tensor qkv = meter.tensor({kTokens, 3 * kHidden}), qkv_bias = meter.tensor({3 * kHidden});
  meter.stream("bias gradient of 2304", bytes * 3 / 4, kLayers,
               [&] { backend.bias_gradient({.dout = qkv, .dbias = qkv_bias}); });
  meter.clear();
}

void measure_ends(Meter& meter, double probability) {
  device::Backend& backend = meter.backend();
  std::vector<std::int32_t> ids(kTokens);
  for (std::int64_t t = 0; t < kTokens; ++t)
    ids[t] = static_cast<std::int32_t>(t * 7919 % kVocabulary);
  const Tensor table = meter.tensor({kPaddedVocabulary, kHidden}), x = meter.tensor(kActivation);
  const Tensor position = meter.tensor({kSequence, kHidden});
  const double bytes = kFloat * kTokens * kHidden;
  const kernels::Dropout dropout = dropout_at(probability, DropoutSite::embedding);
  meter.stream("embedding forward", 2 * bytes, 1,
               [&] { backend.embedding_forward({.ids = ids.data(), .table = table, .out = x}); });
  meter.stream("embedding backward", 3 * bytes, 1, [&] {
    backend.embedding_backward({.ids = ids.data(), .dout = x, .dtable = table});
  });
  meter.stream("position and dropout", 2 * bytes, 1, [&] {
    backend.position_dropout({.x = x, .position = position, .dropout = dropout});
  });
  meter.stream("position backward", bytes, 1,
               [&] { backend.position_backward({.dout = x, .dposition = position}); });

  const Tensor logits = meter.tensor({kTokens, kPaddedVocabulary});
  const Tensor max = meter.tensor({kTokens}), sum = meter.tensor({kTokens});
  const Tensor target = meter.tensor({kTokens}), loss = meter.tensor({1}, DType::f64);
  const double all = kFloat * kTokens * kPaddedVocabulary;
  meter.stream("cross entropy statistics", 2 * all, 1, [&] {
    backend.cross_entropy_statistics({.logits = logits,
                                      .columns = kVocabulary,
                                      .labels = ids.data(),
                                      .max = max,
                                      .sum = sum,
                                      .target = target});
  });
  meter.stream("cross entropy loss", 3 * kFloat * kTokens, 1, [&] {
    backend.cross_entropy_loss(
        {.labels = ids.data(), .max = max, .sum = sum, .target = target, .loss = loss});
  });
  meter.stream("cross entropy backward", 2 * all, 1, [&] {
    backend.cross_entropy_backward(
        {.logits = logits, .columns = kVocabulary, .labels = ids.data(), .max = max, .sum = sum});
  });
  meter.clear();
}

// Over 16 million parameters, as often as the model holds them.
void measure_optimizer(Meter& meter) {
  device::Backend& backend = meter.backend();
  constexpr std::int64_t kPart = 16'000'000;
  const Shape shape{kPart};
  const Tensor weight = meter.tensor(shape), gradient = meter.tensor(shape);
  const Tensor m = meter.tensor(shape), v = meter.tensor(shape);
  const Tensor sum = meter.tensor({1}, DType::f64);
  backend.zero(m);
  backend.zero(v);
  const double bytes = kFloat * kPart, count = kParameters / kPart;
  meter.stream("adamw of 16e6", 7 * bytes, count, [&] {
    backend.adamw({.weight = weight, .gradient = gradient, .m = m, .v = v, .learning_rate = 1e-6});
  });
  meter.stream("squared sum of 16e6", bytes, count,
               [&] { backend.squared_sum({.x = gradient, .out = sum}); });
  meter.stream("zero count of 16e6", bytes, 0,
               [&] { backend.zero_count({.x = gradient, .out = sum}); });
  meter.stream("checksum of 16e6", bytes, 0, [&] {
    backend.checksum({.x = gradient, .out = static_cast<std::uint64_t*>(sum.data)});
  });
  meter.stream("random normal of 16e6", bytes, 0, [&] {
    backend.random_normal({.out = m.view({kPart / 1000, 1000}), .width = 1000});
  });
  meter.stream("zero of 16e6", bytes, count, [&] { backend.zero(gradient); });
  meter.clear();
}

// What the rows add up to, against a step that ran wholly at OpenBLAS's rate.
void print_step(const Meter& meter) {
  double gemms = 0.0, rest = 0.0;
  for (const Row& row : meter.rows()) (row.compute_bound ? gemms : rest) += row.ms * row.count;
  const double flops_per_token =
      72.0 * kLayers * kHidden * kHidden *
      (1.0 + kSequence / (12.0 * kHidden) + kVocabulary / (12.0 * kLayers * kHidden));
  const double ideal = 1e3 * kTokens * flops_per_token / (1e9 * meter.sgemm_rate());
  fmt::print(
      "a step of GPT-2 124M, {} x {} tokens: {:.0f} ms in GEMMs, {:.0f} ms in the rest; "
      "{:.1f} % of the sgemm rate\n",
      kBatch, kSequence, gemms, rest, 100 * ideal / (gemms + rest));
}

}  // namespace

ExitCode run_kernels(int argc, char** argv) {
  po::options_description options = settings_options();
  options.add_options()("dropout", po::value<double>()->default_value(0.0, "0")->value_name("P"),
                        "probability of dropout");
  options.add(general_options());
  if (answers_help_or_version(argc, argv, kKernelsProgram, kKernelsUsage, options))
    return ExitCode::success;
  const po::variables_map values = parse_options(argc, argv, options);
  const double probability = values["dropout"].as<double>();
  if (!(probability >= 0.0 && probability < 1.0))
    throw UsageError("--dropout {}: expected a number in [0, 1)", probability);
  const Settings settings = read_settings(values);
  if (settings.cuda) {
    gpu::measure_kernels(settings, probability);
    return ExitCode::success;
  }
  Meter meter(settings);
  measure_gemms(meter);
  measure_attention(meter, probability);
  measure_rows(meter, probability);
  measure_mlp(meter);
  measure_ends(meter, probability);
  measure_optimizer(meter);
  meter.print();
  if (!settings.json && settings.only.empty()) print_step(meter);
  return ExitCode::success;
}

}  // namespace trireme::bench
