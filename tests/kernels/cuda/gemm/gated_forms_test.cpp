// The gated layer of an MLP and its gradient as GEMMs with an epilogue or as two kernels.
#include "../workbench.hpp"
#include "kernels/cuda/gemm/gemm_runner.hpp"
#include "kernels/cuda/workspace.hpp"
#include "kernels/linear.hpp"

namespace trireme::kernels {
namespace {

using cuda::Fusion;
using cuda::GemmChoice;
using cuda::GemmRunner;

/// Of a layer of k features in and n out.
struct GatedSizes {
  std::int64_t tokens, k, n;
};

/// Calls check(runner, context, function, storage) for each way to fuse, gate and type.
template <typename Check>
void for_each_gate(const Check& check) {
  const device::Buffer workspace = gpu().allocate(cuda::kGemmWorkspace, "a test");
  const cuda::Context context{.stream = gpu().stream(),
                              .workspace = static_cast<std::byte*>(workspace.get()),
                              .workspace_bytes = cuda::kGemmWorkspace,
                              .sms = 16};
  for (const Fusion fusion : {Fusion::always, Fusion::timed, Fusion::never}) {
    GemmRunner runner("", GemmChoice::timed, fusion);
    for (const Activation function : {Activation::silu, Activation::gelu_tanh})
      for (const DType storage : {DType::bf16, DType::f32})
        check(runner, context, function, storage);
  }
}

LinearGated make_gated_layer(Workbench& bench, const GatedSizes& sizes, Activation function) {
  const auto [tokens, k, n] = sizes;
  const double scale = 1.0 / std::sqrt(static_cast<double>(k));
  return {.x = bench.random({tokens, k}, 1),
          .weight = bench.random({2 * n, k}, 2, scale),
          .fc1_out = bench.poisoned({tokens, 2 * n}),
          .gated_out = bench.poisoned({tokens, n}),
          .function = function};
}

// cuBLASLt has no kernels that do both, own ones only for SwiGLU in half precision.
TEST(GatedForms, TheLayerMatchesTheHost) {
  for_each_gate(
      [](GemmRunner& runner, const cuda::Context& context, Activation function, DType storage) {
        for (const GatedSizes& sizes :
             {GatedSizes{256, 128, 512}, GatedSizes{130, 72, 200}, GatedSizes{33, 20, 45},
              GatedSizes{64, 48, 60}, GatedSizes{0, 16, 32}}) {
          Workbench bench(true, storage, storage), host(false, DType::f64, storage);
          const LinearGated args = make_gated_layer(bench, sizes, function);
          runner.linear_gated(args, context);
          gpu().synchronize();
          if (sizes.tokens == 0) continue;
          const LinearGated exact = make_gated_layer(host, sizes, function);
          host.backend().linear_gated(exact);
          const std::vector<double> once = bench.read(args.gated_out);
          const double tolerance = storage == DType::f32 ? 1e-5 : 0.01;
          EXPECT_LE(relative_error(bench.read(args.fc1_out), host.read(exact.fc1_out)), tolerance)
              << sizes.tokens << " tokens in " << name_of(storage);
          EXPECT_LE(relative_error(once, host.read(exact.gated_out)), tolerance)
              << sizes.tokens << " tokens in " << name_of(storage);
          runner.linear_gated(args, context);
          EXPECT_EQ(bench.read(args.gated_out), once) << "other bits the second time";
        }
      });
}

LinearGatedGradient make_gated(Workbench& bench, const GatedSizes& sizes, Activation function) {
  const auto [tokens, k, n] = sizes;
  const double scale = 1.0 / std::sqrt(static_cast<double>(k));
  return {.dy = bench.random({tokens, k}, 1),
          .weight = bench.random({k, n}, 2, scale),
          .fc1_out = bench.random({tokens, 2 * n}, 3),
          .dout = bench.poisoned({tokens, n}),
          .dfc1_out = bench.poisoned({tokens, 2 * n}),
          .function = function};
}

TEST(GatedForms, TheGradientMatchesTheHost) {
  for_each_gate(
      [](GemmRunner& runner, const cuda::Context& context, Activation function, DType storage) {
        for (const GatedSizes& sizes :
             {GatedSizes{256, 128, 512}, GatedSizes{130, 72, 200}, GatedSizes{33, 20, 45}}) {
          Workbench bench(true, storage, storage), host(false, DType::f64, storage);
          const LinearGatedGradient args = make_gated(bench, sizes, function);
          runner.linear_gated_gradient(args, context);
          const LinearGatedGradient exact = make_gated(host, sizes, function);
          host.backend().linear_gated_gradient(exact);
          const std::vector<double> once = bench.read(args.dfc1_out);
          EXPECT_LE(relative_error(once, host.read(exact.dfc1_out)),
                    storage == DType::f32 ? 1e-5 : 0.01)
              << sizes.tokens << " tokens in " << name_of(storage);
          runner.linear_gated_gradient(args, context);
          EXPECT_EQ(bench.read(args.dfc1_out), once) << "other bits the second time";
        }
      });
}

}  // namespace
}  // namespace trireme::kernels
