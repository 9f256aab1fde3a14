// What the CUDA backend's factories say in a build without it.
#include "device/backend.hpp"
#include "device/timers.hpp"

namespace trireme::device {

std::vector<Gpu> visible_gpus() { return {}; }

std::string why_no_gpu() { return "this build has no CUDA backend (TRIREME_CUDA)"; }

std::unique_ptr<Backend> make_cuda_backend(int, const std::string&, GemmChoice, Fusion) {
  throw CodedError<ExitCode::failure>("run.device = cuda: {}", why_no_gpu());
}

std::unique_ptr<SideStream> make_side_stream(const Backend&) { return nullptr; }

}  // namespace trireme::device
