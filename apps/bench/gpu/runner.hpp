// Products with choices of their own, apart from the backend's.
#pragma once

#include "bench/gpu/meter.hpp"
#include "kernels/cuda/gemm.hpp"

namespace trireme::bench::gpu {

/// A runner of products with the context that it runs them in.
struct Runner {
  Runner(Meter& meter, kernels::cuda::GemmChoice choice,
         kernels::cuda::Fusion fusion = kernels::cuda::Fusion::timed);

  kernels::cuda::GemmRunner run;
  device::Buffer workspace;
  kernels::cuda::Context context;
};

}  // namespace trireme::bench::gpu
