// What a pipeline stage is made from, and what it is made of.
#pragma once

#include <optional>
#include <vector>

#include "model/layers/block.hpp"
#include "model/layers/embedding.hpp"
#include "model/layers/head.hpp"
#include "model/stage/recompute.hpp"

namespace trireme::model {

/// A model and how a run passes micro-batches through it.
struct StageConfig {
  ModelSpec spec;
  std::int64_t micro_batch = 1;
  int tensor_ranks = 1;
  DType dtype = DType::f32;
  std::int64_t max_loss_tokens = Head::kMaxLossTokens;
  bool sequence_parallel = false;
  Recompute recompute = {};

  LayerSizes sizes() const {
    return {.hidden = spec.hidden,
            .sequence = spec.sequence,
            .micro_batch = micro_batch,
            .tensor_ranks = tensor_ranks,
            .dtype = dtype,
            .sequence_parallel = sequence_parallel};
  }
};

/// The layers of one pipeline stage: the embedding if it is the first, its blocks in one or more
/// chunks, the head if it is the last.
struct StageLayers {
  std::optional<Embedding> embedding;
  std::vector<std::vector<TransformerBlock>> chunks;  ///< all have as many blocks
  std::optional<Head> head;

  /// Not bound to parameters yet: enough to plan memory.
  StageLayers(const StageConfig& config, const grid::Layout& layout, int stage);
  /// `parameters` must hold the stage's and outlive this.
  void bind(const ParameterStore& parameters);
};

/// Scratch memory in bytes that the CUDA kernels need for passes of such a model, at most one
/// operation at a time.
std::size_t kernel_workspace_bytes(const StageConfig& config);

/// Bytes of the fp32 copies that the host makes of the tensors of one GEMM in a 16-bit type; the
/// head's and the MLP's are the largest.
std::size_t host_gemm_bytes(const StageConfig& config);

}  // namespace trireme::model
