// What measuring a GPU means in a build without the CUDA backend.
#include "bench/gpu/commands.hpp"

namespace trireme::bench::gpu {
namespace {

[[noreturn]] void refuse() {
  throw CodedError<ExitCode::failure>("--device cuda: {}", device::why_no_gpu());
}

}  // namespace

void measure_gemms(const Settings&) { refuse(); }

void measure_kernels(const Settings&, double) { refuse(); }

}  // namespace trireme::bench::gpu
