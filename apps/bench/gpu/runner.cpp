#include "bench/gpu/runner.hpp"

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

}  // namespace trireme::bench::gpu
