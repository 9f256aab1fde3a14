
#include "bench/gpu/epilogues.hpp"
#include "core/cuda/check.hpp"
#include "kernels/cuda/workspace.hpp"

namespace trireme::bench::gpu {
namespace {

constexpr std::int64_t kWidest = 50304;  // outputs of the widest layer: padded words
constexpr std::size_t kWorkspace =
    kernels::cuda::kGemmWorkspace + kernels::cuda::bias_gradient_workspace(kWidest);

}  // namespace

Runner::Runner(Meter& meter, kernels::cuda::GemmChoice choice, kernels::cuda::Fusion fusion)
    : run("", choice, fusion),
      workspace(meter.backend().allocate(kWorkspace, "workspace of products")),
      context{.stream = meter.backend().stream(),
              .workspace = static_cast<std::byte*>(workspace.get()),
              .workspace_bytes = kWorkspace} {
  TRIREME_CUDA(cudaDeviceGetAttribute(&context.multiprocessors, cudaDevAttrMultiProcessorCount, 0));
}

namespace {

using kernels::cuda::Fusion;
using kernels::cuda::GemmChoice;

/// Times an operation, which `make` gives new operands to run on a runner, in both forms.
template <typename MakeOn>
void measure_forms(Meter& meter, WithEpilogue& row, const MakeOn& make) {
  const auto time = [&](Runner& runner) {
    return meter.time([&]() -> Call { return make(runner); });
  };
  Runner separate(meter, GemmChoice::timed, Fusion::never);
  row.separate_ms = time(separate);
  Runner fused(meter, GemmChoice::timed, Fusion::always);
  const double fused_ms = time(fused);
  if (fused.run.fused_products() > 0) row.fused_ms = fused_ms;
  Runner chosen(meter, GemmChoice::timed);
  time(chosen);
  row.fused = chosen.run.fused_products() > 0;
}

}  // namespace

std::vector<WithEpilogue> measure_epilogues(Meter& meter, const Settings& settings,
                                            const std::string& model, std::int64_t tokens,
                                            std::int64_t hidden) {
  const DType dtype = settings.dtype;
  const std::int64_t ffn = 4 * hidden;
  std::vector<WithEpilogue> rows;
  const auto measure = [&](WithEpilogue row, const auto& make) {
    row.name = model + " " + row.name;
    if (!settings.wants(row.name)) return;
    measure_forms(meter, row, make);
    rows.push_back(row);
  };
  measure({.name = "fc1 forward, gelu", .m = tokens, .n = ffn, .k = hidden}, [&](Runner& runner) {
    const kernels::LinearGelu args{.x = meter.random({tokens, hidden}, dtype),
                                   .weight = meter.random({ffn, hidden}, dtype),
                                   .bias = meter.random({ffn}, dtype),
                                   .up = meter.zeros({tokens, ffn}, dtype),
                                   .activated = meter.zeros({tokens, ffn}, dtype)};
    return [&runner, args] { runner.run.linear_gelu(args, runner.context); };
  });
  measure({.name = "fc2 input gradient, gelu'", .m = tokens, .n = ffn, .k = hidden},
          [&](Runner& runner) {
            const kernels::LinearGeluGradient args{
                .dy = meter.random({tokens, hidden}, dtype),
                .weight = meter.random({hidden, ffn}, dtype),
                .up = meter.random({tokens, ffn}, dtype),
                .dup = meter.zeros({tokens, ffn}, dtype),
                .dbias = meter.zeros({ffn}, accumulation_type(dtype))};
            return [&runner, args] { runner.run.linear_gelu_gradient(args, runner.context); };
          });
  const auto measure_weight_gradient = [&](const char* name, std::int64_t in, std::int64_t out) {
    measure({.name = name, .m = out, .n = in, .k = tokens}, [&](Runner& runner) {
      const kernels::LinearWeightGradient args{
          .x = meter.random({tokens, in}, dtype),
          .dy = meter.random({tokens, out}, dtype),
          .dweight = meter.zeros({out, in}, accumulation_type(dtype)),
          .dbias = meter.zeros({out}, accumulation_type(dtype))};
      return [&runner, args] { runner.run.linear_weight_gradient(args, runner.context); };
    });
  };
  measure_weight_gradient("qkv weight gradient, bias", hidden, 3 * hidden);
  measure_weight_gradient("fc2 weight gradient, bias", ffn, hidden);
  return rows;
}

void print(const std::vector<WithEpilogue>& rows) {
  if (rows.empty()) return;
  fmt::print("\n{:<31} {:<20} {:>11} {:>10} {:>9}\n", "product and epilogue", "m x n x k",
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

}  // namespace trireme::bench::gpu
