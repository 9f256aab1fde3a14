// Needs no CUDA headers: every build has it.
#include "device/workspace.hpp"

#include <algorithm>

#include "kernels/cuda/workspace.hpp"

namespace trireme::device {

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

}  // namespace trireme::device
