#include "model/stage/stage_config.hpp"

#include <algorithm>

#include "kernels/cuda/attention_workspace.hpp"
#include "kernels/cuda/workspace.hpp"

namespace trireme::model {

StageLayers::StageLayers(const StageConfig& config, const grid::Layout& layout, int stage) {
  if (layout.is_first(stage)) embedding.emplace(config.spec);
  for (int chunk = 0; chunk < layout.chunks; ++chunk) {
    const auto [first, count] = layout.layers_of(stage, chunk);
    std::vector<TransformerBlock>& blocks = chunks.emplace_back();
    for (int layer = first; layer < first + count; ++layer) blocks.emplace_back(config.spec, layer);
  }
  if (layout.is_last(stage)) head.emplace(config.spec, config.max_loss_tokens);
}

void StageLayers::bind(const ParameterStore& parameters) {
  if (embedding) embedding->bind(parameters);
  for (auto& blocks : chunks)
    for (TransformerBlock& block : blocks) block.bind(parameters);
  if (head) head->bind(parameters);
}

std::size_t kernel_workspace_bytes(const StageConfig& config) {
  const LayerSizes sizes = config.sizes();
  std::size_t attention = 0;
  std::int64_t widest = sizes.hidden;
  for (int layer = 0; layer < config.spec.layers(); ++layer) {
    const TransformerBlock block(config.spec, layer);
    widest = std::max(widest, block.inner_width(sizes));
    attention = std::max(attention,
                         kernels::cuda::attention_backward_workspace(
                             sizes.dtype, sizes.sequence, sizes.micro_batch,
                             block.attention().local_heads(sizes), block.attention().head_dim()));
  }
  return std::max({kernels::cuda::kGemmWorkspace + kernels::cuda::bias_gradient_workspace(widest),
                   kernels::cuda::column_sums_workspace(widest),
                   kernels::cuda::layernorm_backward_workspace(sizes.hidden),
                   kernels::cuda::embedding_backward_workspace(sizes.tokens(), sizes.hidden),
                   kernels::cuda::squared_sum_workspace(),
                   kernels::cuda::cross_entropy_loss_workspace(), attention});
}

std::size_t host_gemm_bytes(const StageConfig& config) {
  const LayerSizes sizes = config.sizes();
  if (sizes.dtype == wide(sizes.dtype)) return 0;
  const auto gemm = [&](std::int64_t tokens, std::int64_t columns) {
    return (tokens * sizes.hidden + columns * sizes.hidden + tokens * columns) * sizeof(float);
  };
  const Head head(config.spec, config.max_loss_tokens);
  std::size_t bytes = gemm(head.loss_tokens(sizes), head.local_vocab(sizes));
  for (const BlockSpec& block : config.spec.blocks)
    bytes = std::max(bytes, gemm(sizes.tokens(), block.mlp.width / sizes.tensor_ranks));
  return bytes;
}

}  // namespace trireme::model
