// GEMMs: on a GPU cuBLASLt's first choice against the fastest kernel, and those with the GELU or
// the gradient of the bias fused against two kernels; and on the host.
#include <nlohmann/json.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "app.hpp"
#include "bench/commands.hpp"
#include "bench/kernel_rows.hpp"

namespace trireme::bench::gpu {
namespace {

using device::Fusion;
using device::GemmChoice;

constexpr std::int64_t kTokens = 16384;
constexpr std::int64_t kPaddedVocabulary = 50304;

/// A backend whose GEMMs get their kernels as `choice` and `fusion` say; without a tuning cache.
std::unique_ptr<device::Backend> backend_with(GemmChoice choice, Fusion fusion = Fusion::timed) {
  auto backend = device::make_cuda_backend(0, "", choice, fusion);
  backend->reserve_workspace(device::linear_workspace(kPaddedVocabulary));
  return backend;
}

/// A GEMM with an epilogue, C [m, n] of k terms each. Each form runs on the kernel that is the
/// fastest for it.
struct WithEpilogue {
  std::string name;
  std::int64_t m = 0, n = 0, k = 0;
  double separate_ms = 0.0;
  double fused_ms = 0.0;  ///< 0 where there is no such kernel
  bool fused = false;     ///< whether training would run it in one kernel
};

/// Times an operation, which `make` gives new operands to run on a backend, in both forms.
template <typename MakeOn>
void measure_forms(Meter& meter, WithEpilogue& row, const MakeOn& make) {
  const auto time = [&](device::Backend& backend) {
    return meter.time(backend, [&]() -> Call { return make(backend); });
  };
  row.separate_ms = time(*backend_with(GemmChoice::timed, Fusion::never));
  const auto fused = backend_with(GemmChoice::timed, Fusion::always);
  const double fused_ms = time(*fused);
  if (fused->fused_gemms() > 0) row.fused_ms = fused_ms;
  const auto chosen = backend_with(GemmChoice::timed);
  time(*chosen);
  row.fused = chosen->fused_gemms() > 0;
}

/// Those of a GPT of `hidden` features on `tokens` tokens that the settings want: of the MLP, the
/// forward pass of its first half and the gradient that comes back through the second; and the
/// weight gradients that training takes with that of the bias.
std::vector<WithEpilogue> measure_epilogues(Meter& meter, const std::string& model,
                                            std::int64_t tokens, std::int64_t hidden) {
  const DType dtype = meter.dtype();
  const std::int64_t ffn = 4 * hidden;
  std::vector<WithEpilogue> rows;
  const auto measure = [&](WithEpilogue row, const auto& make) {
    row.name = model + " " + row.name;
    if (!meter.wants(row.name)) return;
    measure_forms(meter, row, make);
    rows.push_back(row);
  };
  measure({.name = "fc1 forward, gelu", .m = tokens, .n = ffn, .k = hidden},
          [&](device::Backend& backend) {
            const kernels::LinearGelu args{.x = meter.random({tokens, hidden}, dtype),
                                           .weight = meter.random({ffn, hidden}, dtype),
                                           .bias = meter.random({ffn}, dtype),
                                           .fc1_out = meter.zeros({tokens, ffn}, dtype),
                                           .gelu_out = meter.zeros({tokens, ffn}, dtype)};
            return [&backend, args] { backend.linear_gelu(args); };
          });
  measure({.name = "fc2 input gradient, gelu'", .m = tokens, .n = ffn, .k = hidden},
          [&](device::Backend& backend) {
            const kernels::LinearGeluGradient args{
                .dy = meter.random({tokens, hidden}, dtype),
                .weight = meter.random({hidden, ffn}, dtype),
                .fc1_out = meter.random({tokens, ffn}, dtype),
                .dfc1_out = meter.zeros({tokens, ffn}, dtype),
                .dbias = meter.zeros({ffn}, accumulation_type(dtype))};
            return [&backend, args] { backend.linear_gelu_gradient(args); };
          });
  const auto measure_weight_gradient = [&](const char* name, std::int64_t in, std::int64_t out) {
    measure({.name = name, .m = out, .n = in, .k = tokens}, [&](device::Backend& backend) {
      const kernels::LinearWeightGradient args{
          .x = meter.random({tokens, in}, dtype),
          .dy = meter.random({tokens, out}, dtype),
          .dweight = meter.zeros({out, in}, accumulation_type(dtype)),
          .dbias = meter.zeros({out}, accumulation_type(dtype))};
      return [&backend, args] { backend.linear_weight_gradient(args); };
    });
  };
  measure_weight_gradient("qkv weight gradient, bias", hidden, 3 * hidden);
  measure_weight_gradient("fc2 weight gradient, bias", ffn, hidden);
  return rows;
}

/// The rows as a table.
void print(const std::vector<WithEpilogue>& rows) {
  if (rows.empty()) return;
  fmt::print("\n{:<31} {:<20} {:>11} {:>10} {:>9}\n", "GEMM and epilogue", "m x n x k",
             "separate us", "fused us", "chosen");
  for (const WithEpilogue& row : rows)
    fmt::print("{:<31} {:<20} {:>11.1f} {:>10} {:>9}\n", row.name,
               fmt::format("{} x {} x {}", row.m, row.n, row.k), 1e3 * row.separate_ms,
               row.fused_ms > 0.0 ? fmt::format("{:.1f}", 1e3 * row.fused_ms) : "none",
               row.fused ? "fused" : "separate");
}

nlohmann::ordered_json to_json(const std::vector<WithEpilogue>& rows) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const WithEpilogue& row : rows) {
    nlohmann::ordered_json entry = {{"name", row.name},
                                    {"m", row.m},
                                    {"n", row.n},
                                    {"k", row.k},
                                    {"separate_ms", row.separate_ms},
                                    {"fused_ms", nullptr},
                                    {"fused", row.fused}};
    if (row.fused_ms > 0.0) entry["fused_ms"] = row.fused_ms;
    list.push_back(entry);
  }
  return list;
}

struct Model {
  const char* name;
  std::int64_t hidden;
};
constexpr std::array<Model, 4> kModels = {
    {{"124M", 768}, {"355M", 1024}, {"774M", 1280}, {"1.5B", 1600}}};

/// A linear layer y [T, out] = x [T, in] weight^T.
struct Linear {
  const char* name;
  std::int64_t in, out;
  bool bias;
};

std::array<Linear, 5> linears_of(std::int64_t hidden) {
  return {{{"qkv", hidden, 3 * hidden, true},
           {"proj", hidden, hidden, true},
           {"fc1", hidden, 4 * hidden, true},
           {"fc2", 4 * hidden, hidden, true},
           {"logits", hidden, kPaddedVocabulary, false}}};
}

/// One GEMM, by the rows, columns and terms of its result.
struct GemmProblem {
  std::string name;
  std::int64_t m, n, k;
  bool transpose_a = false, transpose_b = false, weight_gradient = false, bias = false;
};

std::vector<GemmProblem> gemms_of(const Model& model) {
  std::vector<GemmProblem> gemms;
  for (const Linear& linear : linears_of(model.hidden)) {
    const auto name = [&](const char* kind) {
      return fmt::format("{} {} {}", model.name, linear.name, kind);
    };
    gemms.push_back({.name = name("forward"),
                     .m = kTokens,
                     .n = linear.out,
                     .k = linear.in,
                     .transpose_b = true,
                     .bias = linear.bias});
    gemms.push_back(
        {.name = name("input gradient"), .m = kTokens, .n = linear.in, .k = linear.out});
    gemms.push_back({.name = name("weight gradient"),
                     .m = linear.out,
                     .n = linear.in,
                     .k = kTokens,
                     .transpose_a = true,
                     .weight_gradient = true});
  }
  return gemms;
}

struct MeasuredGemm {
  GemmProblem problem;
  double first = 0.0, fastest = 0.0;  ///< TFLOP/s
};

double tflops(Meter& meter, device::Backend& backend, const GemmProblem& problem, DType dtype) {
  const double ms = meter.time(backend, [&]() -> Call {
    const auto& [name, m, n, k, ta, tb, weight_gradient, bias] = problem;
    const kernels::Gemm args{
        .a = meter.random(ta ? Shape{k, m} : Shape{m, k}, dtype),
        .b = meter.random(tb ? Shape{n, k} : Shape{k, n}, dtype),
        .c = meter.zeros({m, n}, weight_gradient ? accumulation_type(dtype) : dtype),
        .transpose_a = ta,
        .transpose_b = tb,
        .beta = weight_gradient ? 1.0 : 0.0,
        .bias = bias ? meter.random({n}, dtype) : Tensor{}};
    return [&backend, args] { backend.gemm(args); };
  });
  return 1e-9 * 2.0 * static_cast<double>(problem.m) * static_cast<double>(problem.n) *
         static_cast<double>(problem.k) / ms;
}

void print(const Meter& meter, const Settings& settings, const std::vector<MeasuredGemm>& rows,
           const std::vector<WithEpilogue>& epilogues) {
  if (settings.json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const auto& [problem, first, fastest] : rows)
      list.push_back({{"name", problem.name},
                      {"m", problem.m},
                      {"n", problem.n},
                      {"k", problem.k},
                      {"first_tflops", first},
                      {"fastest_tflops", fastest}});
    const nlohmann::ordered_json all = {{"gpu", meter.gpu().name},
                                        {"type", name_of(settings.dtype)},
                                        {"gemm_gflops", meter.gemm_rate()},
                                        {"rows", list},
                                        {"epilogues", to_json(epilogues)}};
    fmt::print("{}\n", all.dump(2));
    return;
  }
  fmt::print("{:<28} {:<20} {:>7} {:>7} {:>8} {:>9}\n", "GEMM", "m x n x k", "first", "fastest",
             "gain", "of 8192^3");
  for (const auto& [problem, first, fastest] : rows)
    fmt::print("{:<28} {:<20} {:>7.0f} {:>7.0f} {:>6.1f} % {:>7.1f} %\n", problem.name,
               fmt::format("{} x {} x {}", problem.m, problem.n, problem.k), first, fastest,
               100 * (fastest / first - 1), 100 * 1e3 * fastest / meter.gemm_rate());
  print(epilogues);
  fmt::print(
      "\nTFLOP/s in {} on {}: the kernel that cuBLASLt's heuristic puts first, and the fastest of "
      "its candidates\nand the own kernels; the GEMM of 8192^3 runs at {:.0f} TFLOP/s; medians "
      "of {}\n",
      name_of(settings.dtype), meter.gpu().name, 1e-3 * meter.gemm_rate(), settings.repeats);
}

}  // namespace

void measure_gemms(const Settings& settings) {
  Meter meter(settings);
  // The heuristic alone.
  const auto first = backend_with(GemmChoice::heuristic, Fusion::never),
             fastest = backend_with(GemmChoice::timed);
  std::vector<MeasuredGemm> rows;
  std::vector<WithEpilogue> epilogues;
  for (const Model& model : kModels) {
    for (const GemmProblem& problem : gemms_of(model))
      if (meter.wants(problem.name))
        rows.push_back({problem, tflops(meter, *first, problem, settings.dtype),
                        tflops(meter, *fastest, problem, settings.dtype)});
    const auto more = measure_epilogues(meter, model.name, kTokens, model.hidden);
    epilogues.insert(epilogues.end(), more.begin(), more.end());
  }
  meter.require_wanted();
  print(meter, settings, rows, epilogues);
}

}  // namespace trireme::bench::gpu

namespace trireme::bench {
namespace {

constexpr const char* kGemmProgram = "trireme-bench gemm";
constexpr const char* kGemmUsage =
    "Usage: trireme-bench gemm [options]\n"
    "Times GEMMs of GPTs: on the host against OpenBLAS's own sgemm, on a GPU cuBLASLt's\n"
    "first choice against the fastest of its candidates and the own kernels.\n\n";

}  // namespace

void measure_gemms(Meter& meter) {
  device::Backend& backend = meter.backend();
  for (const Linear& linear : kLinears) {
    const double flops = 2.0 * kTokens * linear.in * linear.out;
    const auto measure = [&](const char* part, const auto& arguments) {
      const Make make = [&]() -> Call {
        const kernels::Gemm args = arguments(meter.random({kTokens, linear.in}, DType::f32),
                                             meter.random({kTokens, linear.out}, DType::f32),
                                             meter.random({linear.out, linear.in}, DType::f32));
        return [&backend, args] { backend.gemm(args); };
      };
      meter.gemm(fmt::format("{} {}: {} -> {}", linear.name, part, linear.in, linear.out), flops,
                 make, linear.count);
    };
    using kernels::Gemm;
    measure("forward", [](const Tensor& x, const Tensor& y, const Tensor& weight) {
      return Gemm{.a = x, .b = weight, .c = y, .transpose_b = true};
    });
    measure("input gradient", [](const Tensor& x, const Tensor& y, const Tensor& weight) {
      return Gemm{.a = y, .b = weight, .c = x};
    });
    measure("weight gradient", [](const Tensor& x, const Tensor& y, const Tensor& weight) {
      return Gemm{.a = y, .b = x, .c = weight, .transpose_a = true, .beta = 1.0};
    });
  }
}

ExitCode run_gemm(int argc, char** argv) {
  po::options_description options = settings_options();
  options.add(general_options());
  if (answers_help_or_version(argc, argv, kGemmProgram, kGemmUsage, options))
    return ExitCode::success;
  const po::variables_map values = parse_options(argc, argv, options);
  const Settings settings = read_settings(values);
  if (settings.cuda) {
    gpu::measure_gemms(settings);
    return ExitCode::success;
  }
  HostMeter meter(settings);
  measure_gemms(meter);
  meter.print();
  return ExitCode::success;
}

}  // namespace trireme::bench
