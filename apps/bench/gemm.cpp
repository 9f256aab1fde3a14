#include "app.hpp"
#include "bench/commands.hpp"
#include "bench/gpu/meter.hpp"
#include "bench/kernel_rows.hpp"

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
