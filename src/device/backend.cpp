#include "device/backend.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "device/timers.hpp"
#include "kernels/cuda/workspace.hpp"

namespace trireme::device {
namespace {

/// TFLOP/s without sparsity, from NVIDIA's data sheets.
struct Peak {
  std::string_view word;  ///< in the GPU's name, with no digit after it
  double half;            ///< bf16 and fp16
  double single;          ///< fp32 outside the tensor cores
};

// Of two words that a name contains, the first here counts.
constexpr auto kPeaks = std::to_array<Peak>({
    {"H100 PCIe", 756.0, 51.0}, {"H100 NVL", 835.5, 60.0}, {"H200 NVL", 835.5, 60.0},
    {"H100", 989.4, 66.9},      {"H200", 989.4, 66.9},     {"GH200", 989.4, 66.9},
    {"H800", 989.4, 66.9},      {"A100", 312.0, 19.5},     {"A800", 312.0, 19.5},
    {"A30", 165.0, 10.3},       {"A40", 149.7, 37.4},      {"A10G", 70.0, 35.0},
    {"A10", 125.0, 31.2},       {"A6000", 154.8, 38.7},    {"L40S", 362.0, 91.6},
    {"L40", 181.0, 90.5},       {"L4", 121.0, 30.3},       {"RTX 3090", 71.0, 35.6},
    {"RTX 4090", 165.2, 82.6},
});

/// In the names of parts of GPUs and of GPUs named after others, whose data sheets say less or
/// more.
constexpr std::string_view kOthers[] = {" MIG ", " Laptop", " Ti", " 4090 D"};

/// An RTX A4000 is no A40.
bool names(std::string_view gpu, std::string_view word) {
  const std::size_t begin = gpu.find(word);
  if (begin == std::string_view::npos) return false;
  const std::size_t end = begin + word.size();
  return end == gpu.size() || gpu[end] < '0' || gpu[end] > '9';
}

}  // namespace

double peak_flops(const std::string& gpu, DType dtype) {
  TRIREME_CHECK(!is_fp8(dtype), "the peak of {} is not in the table", name_of(dtype));
  for (const std::string_view other : kOthers)
    if (gpu.find(other) != std::string::npos) return 0.0;
  for (const Peak& peak : kPeaks)
    if (names(gpu, peak.word)) return 1e12 * (size_of(dtype) == 2 ? peak.half : peak.single);
  return 0.0;
}

// ---- scratch memory: needs no CUDA headers, every build has it

namespace gpu = kernels::cuda;

std::size_t linear_workspace(std::int64_t columns) {
  return std::max({gpu::kGemmWorkspace + gpu::bias_gradient_workspace(columns),
                   gpu::gelu_backward_workspace(columns)});
}

std::size_t attention_workspace(DType dtype, std::int64_t s, std::int64_t b, std::int64_t heads,
                                std::int64_t d, std::int64_t kv_heads) {
  return std::max(gpu::attention_forward_workspace(),
                  gpu::attention_backward_workspace(dtype, s, b, heads, d, kv_heads));
}

std::size_t layernorm_workspace(std::int64_t hidden) {
  return gpu::layernorm_backward_workspace(hidden);
}

std::size_t embedding_workspace(std::int64_t tokens, std::int64_t hidden) {
  return gpu::embedding_backward_workspace(tokens, hidden);
}

std::size_t sum_workspace() {
  return std::max(gpu::squared_sum_workspace(), gpu::cross_entropy_loss_workspace());
}

// ---- what the CUDA backend's factories say in a build without it

#ifndef TRIREME_WITH_CUDA

std::vector<Gpu> visible_gpus() { return {}; }

std::string why_no_gpu() { return "this build has no CUDA backend (TRIREME_CUDA)"; }

std::unique_ptr<Backend> make_cuda_backend(int, const std::string&, GemmChoice, Fusion) {
  throw CodedError<ExitCode::failure>("run.device = cuda: {}", why_no_gpu());
}

std::unique_ptr<SideStream> make_side_stream(const Backend&) { return nullptr; }

#endif

}  // namespace trireme::device
