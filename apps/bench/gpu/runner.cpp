#include "bench/gpu/runner.hpp"

#include "core/cuda/check.hpp"
#include "kernels/cuda/workspace.hpp"

namespace trireme::bench::gpu {

Runner::Runner(Meter& meter, kernels::cuda::GemmChoice choice, kernels::cuda::Fusion fusion)
    : run("", choice, fusion),
      workspace(meter.backend().allocate(kernels::cuda::kGemmWorkspace, "workspace of products")),
      context{.stream = meter.backend().stream(),
              .workspace = static_cast<std::byte*>(workspace.get()),
              .workspace_bytes = kernels::cuda::kGemmWorkspace} {
  TRIREME_CUDA(cudaDeviceGetAttribute(&context.multiprocessors, cudaDevAttrMultiProcessorCount, 0));
}

}  // namespace trireme::bench::gpu
