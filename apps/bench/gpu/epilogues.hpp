// GEMMs with choices of their own, apart from the backend's: with the GELU or the gradient of
// the\nbias fused, against separate kernels.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "bench/gpu/meter.hpp"
#include "kernels/cuda/gemm/gemm_runner.hpp"

namespace trireme::bench::gpu {

/// A runner of products with the context that it runs them in.
struct Runner {
  Runner(Meter& meter, kernels::cuda::GemmChoice choice,
         kernels::cuda::Fusion fusion = kernels::cuda::Fusion::timed);

  kernels::cuda::GemmRunner run;
  device::Buffer workspace;
  kernels::cuda::Context context;
};

/// One operation that multiplies, C [m, n] of k terms each, and does something beside it. Each form
/// runs on the kernel that is the fastest for it.
struct WithEpilogue {
  std::string name;
  std::int64_t m = 0, n = 0, k = 0;
  double separate_ms = 0.0;
  double fused_ms = 0.0;  ///< 0 where there is no such kernel
  bool fused = false;     ///< whether training would run it in one kernel
};

/// Those of a GPT of `hidden` features on `tokens` tokens that the settings want: of the MLP, the
/// forward pass of its first half and the gradient that comes back through the second; and the
/// weight gradients that training takes with that of the bias.
std::vector<WithEpilogue> measure_epilogues(Meter& meter, const Settings& settings,
                                            const std::string& model, std::int64_t tokens,
                                            std::int64_t hidden);

/// The rows as a table, and as JSON.
void print(const std::vector<WithEpilogue>& rows);
nlohmann::ordered_json to_json(const std::vector<WithEpilogue>& rows);

}  // namespace trireme::bench::gpu
