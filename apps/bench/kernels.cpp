// trireme-bench kernels: its rows of the loss and the optimizer, and what is measured where.
#include <array>

#include "app.hpp"
#include "bench/commands.hpp"
#include "bench/kernel_rows.hpp"

namespace trireme::bench {
namespace {

constexpr const char* kKernelsProgram = "trireme-bench kernels";
constexpr const char* kKernelsUsage =
    "Usage: trireme-bench kernels [options]\n"
    "Times every operation of a GPT's training step against what the host or the GPU can do.\n\n";

constexpr double kWide = 4.0;  // bytes of fp32

// 16384 tokens in each.
constexpr std::array<Model, 8> kModels = {{{"124M", 768, 12, 1024, 16},
                                           {"760M", 1536, 16, 2048, 8},
                                           {"1.5B", 1600, 25, 1024, 16},
                                           {"6.7B", 4096, 32, 2048, 8},
                                           {"BERT-Large 128", 1024, 16, 128, 128, true},
                                           {"BERT-Large 512", 1024, 16, 512, 32, true},
                                           {"Qwen2.5-1.5B", 1536, 12, 1024, 16, false, 2, 8960},
                                           {"Llama-3.1-8B", 4096, 32, 8192, 2, false, 8, 14336}}};

// The sum of the rows, against the time of a step whose FLOPs all run at OpenBLAS's rate.
void print_step(const HostMeter& meter) {
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

// The same for every model: the logits do not depend on the hidden size.
void Rows::cross_entropy() {
  const Shape shape{model_.tokens(), kRowsPaddedVocabulary};
  const double bytes = static_cast<double>(shape.size() * size_of(dtype_));
  const auto statistics = [=, this] {
    return kernels::CrossEntropyStatistics{.logits = meter_.random(shape, dtype_),
                                           .columns = kRowsVocabulary,
                                           .labels = meter_.ids(model_.tokens(), kRowsVocabulary),
                                           .max = per_token(),
                                           .sum = per_token(),
                                           .target = per_token()};
  };
  meter_.stream(
      "cross entropy statistics", bytes, [=, this]() -> Call { return call(statistics()); },
      ends());
  meter_.stream(
      "cross entropy loss", 3.0 * static_cast<double>(model_.tokens()) * sizeof(float),
      [=, this]() -> Call {
        const kernels::CrossEntropyLoss args{.labels = meter_.ids(model_.tokens(), kRowsVocabulary),
                                             .max = per_token(),
                                             .sum = per_token(),
                                             .target = per_token(),
                                             .loss = meter_.zeros({1}, DType::f64)};
        return call(args);
      },
      ends());
  meter_.stream(
      "cross entropy backward", 2 * bytes,
      [=, this]() -> Call {
        const kernels::CrossEntropyStatistics known = statistics();
        call(known)();
        const kernels::CrossEntropyBackward args{.logits = known.logits,
                                                 .columns = known.columns,
                                                 .labels = known.labels,
                                                 .max = known.max,
                                                 .sum = known.sum};
        return call(args);
      },
      ends());
  meter_.stream("cross entropy, both", 2 * bytes, [=, this]() -> Call {
    const kernels::CrossEntropyStatisticsBackward args{.statistics = statistics(), .scale = 1e-3};
    return call(args);
  });
}

void Rows::optimizer(std::int64_t count, double parameters) {
  const DType dtype = dtype_;
  const Shape shape{count};
  const double elements = static_cast<double>(count), calls = ends() * parameters / elements;
  const auto of = [&](const char* operation) {
    return fmt::format("{} of {}e6", operation, count / 1'000'000);
  };
  const double copy = dtype == DType::f32 ? 0.0 : static_cast<double>(size_of(dtype));
  meter_.stream(
      of("adamw"), elements * (7 * kWide + copy),
      [&]() -> Call {
        const kernels::AdamW args{.weight = meter_.random(shape, DType::f32),
                                  .gradient = meter_.random(shape, DType::f32),
                                  .m = meter_.zeros(shape, DType::f32),
                                  .v = meter_.zeros(shape, DType::f32),
                                  .copy = copy > 0 ? meter_.zeros(shape, dtype) : Tensor{},
                                  .learning_rate = 1e-6};
        return call(args);
      },
      calls);
  meter_.stream(of("sgd"), elements * (5 * kWide + copy), [&]() -> Call {
    const kernels::Sgd args{.weight = meter_.random(shape, DType::f32),
                            .gradient = meter_.random(shape, DType::f32),
                            .m = meter_.zeros(shape, DType::f32),
                            .copy = copy > 0 ? meter_.zeros(shape, dtype) : Tensor{},
                            .learning_rate = 1e-6,
                            .momentum = 0.9};
    return call(args);
  });
  meter_.stream(of("lamb direction"), elements * 7 * kWide, [&]() -> Call {
    const kernels::LambDirection args{.weight = meter_.random(shape, DType::f32),
                                      .gradient = meter_.random(shape, DType::f32),
                                      .m = meter_.zeros(shape, DType::f32),
                                      .v = meter_.zeros(shape, DType::f32)};
    return call(args);
  });
  meter_.stream(
      of("squared sum"), elements * kWide,
      [&]() -> Call {
        const kernels::SquaredSum args{.x = meter_.random(shape, DType::f32),
                                       .out = meter_.zeros({1}, DType::f64)};
        return call(args);
      },
      calls);
  meter_.stream(of("zero count"), elements * kWide, [&]() -> Call {
    const kernels::ZeroCount args{.x = meter_.random(shape, DType::f32),
                                  .out = meter_.zeros({1}, DType::f64)};
    return call(args);
  });
  meter_.stream(of("checksum"), elements * kWide, [&]() -> Call {
    const kernels::Checksum args{
        .x = meter_.random(shape, DType::f32),
        .out = static_cast<std::uint64_t*>(meter_.zeros({1}, DType::f64).data)};
    return call(args);
  });
  meter_.stream(of("random normal"), elements * kWide, [&]() -> Call {
    const kernels::RandomNormal args{.out = meter_.zeros({count / 1000, 1000}, DType::f32),
                                     .width = 1000};
    return call(args);
  });
  meter_.stream(of("cast"), elements * (kWide + static_cast<double>(size_of(dtype))),
                [&]() -> Call {
                  const kernels::Cast args{.x = meter_.random(shape, DType::f32),
                                           .out = meter_.zeros(shape, dtype)};
                  return call(args);
                });
  if (copy > 0)
    meter_.stream(of("widening cast"), elements * (kWide + copy), [&]() -> Call {
      const kernels::Cast args{.x = meter_.random(shape, dtype),
                               .out = meter_.zeros(shape, DType::f32)};
      return call(args);
    });
  meter_.stream(
      of("zero"), elements * kWide,
      [&]() -> Call {
        return
            [&backend = meter_.backend(), x = meter_.zeros(shape, DType::f32)] { backend.zero(x); };
      },
      calls);
}

void measure_models(Meter& meter, double dropout, int fp8_capability) {
  for (const Model& model : kModels) {
    Rows rows(meter, model, dropout);
    rows.attention(model.sequence);
    if (model.bert) {
      rows.mlp();
      continue;
    }
    if (model.kv_heads > 0) {
      rows.llama();
      continue;
    }
    rows.attention(model.sequence / 4);
    rows.cached_attention();
    rows.norms();
    rows.dropouts();
    rows.mlp();
    if (fp8_capability >= 89) rows.fp8(/*blocks=*/fp8_capability == 90);
    rows.embeddings();
    if (&model == &kModels.front()) rows.cross_entropy();
  }
  Rows(meter, kModels.front(), dropout).optimizer(64'000'000, 0);
}

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
  HostMeter meter(settings);
  measure_gemms(meter);
  const Model gpt2{.name = "",
                   .hidden = kHidden,
                   .heads = kHeads,
                   .sequence = kSequence,
                   .batch = kBatch,
                   .layers = kLayers};
  Rows rows(meter, gpt2, probability);
  rows.attention(kSequence);
  rows.norms();
  rows.dropouts();
  rows.mlp();
  rows.embeddings();
  rows.cross_entropy();
  rows.optimizer(16'000'000, kParameters);
  meter.print();
  if (!settings.json && settings.only.empty()) print_step(meter);
  return ExitCode::success;
}

// Rows of FP8: conversions and GEMMs.

/// The conversions of an MLP's activations [T, 4 h], and its first GEMM's three forms;
/// with `blocks` also those with a scale for each block.
void Rows::fp8(bool blocks) {
  using enum DType;
  using kernels::ScaleBlocks;
  const std::int64_t T = model_.tokens(), h = model_.hidden;
  const double elements = static_cast<double>(4 * T * h);
  const auto scales = [this](Shape shape, ScaleBlocks of) {
    return meter_.random({kernels::scale_layout(of, shape[0], shape[1]).count}, f32);
  };
  const auto operand = [=, this](Shape shape, DType dtype, ScaleBlocks of) {
    Tensor tensor = meter_.random(shape, dtype);
    tensor.scale = scales(shape, of).as<float>();
    return tensor;
  };
  meter_.stream(name("amax"), elements * size_of(dtype_), [=, this]() -> Call {
    const kernels::Amax args{.x = meter_.random({T, 4 * h}, dtype_),
                             .amax = meter_.zeros({1}, f32)};
    return call(args);
  });
  meter_.stream(name("fp8 cast, both layouts"), elements * (size_of(dtype_) + 2),
                [=, this]() -> Call {
                  const kernels::Quantize args{.x = meter_.random({T, 4 * h}, dtype_),
                                               .amax = meter_.random({1}, f32),
                                               .scale = meter_.zeros({1}, f32),
                                               .out = meter_.zeros({T, 4 * h}, float8_e4m3),
                                               .transposed = meter_.zeros({4 * h, T}, float8_e4m3)};
                  return call(args);
                });
  const double flops = 2.0 * elements * static_cast<double>(h);
  const auto gemm = [&](const std::string& form, Shape a, DType a_type, Shape b, DType result,
                        double beta, ScaleBlocks of_a, ScaleBlocks of_b) {
    meter_.gemm(name(form), flops, [=, this]() -> Call {
      const kernels::Gemm args{
          .a = operand(a, a_type, of_a),
          .b = operand(b, float8_e4m3, of_b),
          .c = meter_.zeros({a[0], b[0]}, result),
          .transpose_b = true,
          .beta = beta,
          .fast_accumulation = a_type == float8_e4m3 && of_a == ScaleBlocks::tensor,
          .blocks_a = of_a,
          .blocks_b = of_b};
      return call(args);
    });
  };
  const auto gemms = [&](const std::string& head, ScaleBlocks operands, ScaleBlocks weights) {
    gemm(head + ", forward", {T, h}, float8_e4m3, {4 * h, h}, dtype_, 0.0, operands, weights);
    gemm(head + ", input gradient", {T, 4 * h}, float8_e5m2, {h, 4 * h}, dtype_, 0.0, operands,
         weights);
    gemm(head + ", weight gradient", {4 * h, T}, float8_e5m2, {h, T}, f32, 1.0, operands, operands);
  };
  gemms("fp8 gemm", ScaleBlocks::tensor, ScaleBlocks::tensor);
  if (!blocks) return;
  meter_.stream(name("fp8 cast of blocks, both layouts"), elements * (size_of(dtype_) + 2),
                [=, this]() -> Call {
                  const Shape shape{T, 4 * h}, turned{4 * h, T};
                  const kernels::QuantizeBlocks args{
                      .x = meter_.random(shape, dtype_),
                      .out = meter_.zeros(shape, float8_e4m3),
                      .out_scales = scales(shape, ScaleBlocks::vectors),
                      .transposed = meter_.zeros(turned, float8_e4m3),
                      .transposed_scales = scales(turned, ScaleBlocks::vectors)};
                  return call(args);
                });
  gemms("fp8 gemm of blocks", ScaleBlocks::vectors, ScaleBlocks::squares);
}

}  // namespace trireme::bench
