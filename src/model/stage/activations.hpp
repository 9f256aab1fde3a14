// The memory of a pipeline stage: what each micro-batch keeps, what all share.
#pragma once

#include <optional>
#include <vector>

#include "model/arena.hpp"
#include "model/stage/segment_inputs.hpp"
#include "model/stage/stage_config.hpp"

namespace trireme::model {

/// Bytes of a stage's memory besides weights, gradients and optimizer.
struct StageMemory {
  std::size_t activations = 0;
  std::size_t workspace = 0;
  std::size_t communication = 0;  ///< gradients exchanged with other stages
  std::size_t host = 0;           ///< in the host's memory: activations with Recompute::offload
};

/// Activations of each block of each chunk: [chunk][block]. A slot is in one chunk at a time, so
/// that those of blocks with the same number share memory.
using ChunkActivations = std::vector<std::vector<BlockActivations>>;

/// Memory that all slots use in turn for what is recomputed.
struct RecomputeBuffers {
  ChunkActivations blocks;      ///< of recomputed segments; those of the others are empty
  std::vector<Tensor> streams;  ///< between the blocks of the longest such segment
  std::optional<Tensor> norm;   ///< of every block, where none keeps its own
  static RecomputeBuffers take(Arena& arena, const StageConfig& config, const StageLayers& layers,
                               const std::vector<Segment>& segments);
};

/// What one micro-batch keeps between its forward and its backward through one chunk.
struct Slot {
  int chunk = 0;
  std::int32_t* ids = nullptr;
  std::int32_t* positions = nullptr;       ///< [s * b], with reset_positions on the first stage
  std::int32_t* document_start = nullptr;  ///< [b * s], with reset_attention
  std::uint64_t first_sample = 0;
  Embedding::Activations embedding;
  ChunkActivations blocks;
  std::vector<Tensor> streams;  ///< input of each block, then the output of the last

  /// Slot number `index`. What `recompute` and `inputs` have is not taken again.
  static Slot take(Arena& arena, const StageConfig& config, const StageLayers& layers,
                   const std::vector<Segment>& segments, const RecomputeBuffers& recompute,
                   const SegmentInputs& inputs, int index);
};

/// What the head keeps of the micro-batch in `slot`.
struct HeadSlot {
  int slot = -1;
  std::int32_t* labels = nullptr;
  Head::Activations head;
};

/// All of StageMemory::activations, and of StageMemory::host.
struct StageActivations {
  SegmentInputs inputs;
  std::vector<Slot> slots;
  HeadSlot head;
  static StageActivations take(Arena& arena, Arena& host, const StageConfig& config,
                               const StageLayers& layers, int slots);
};

/// All of StageMemory::workspace and communication.
struct StageScratch {
  LayerWorkspace layer;
  Tensor loss;          ///< [1] f64
  Tensor gradients[2];  ///< last: what is exchanged with other stages
  static StageScratch take(Arena& arena, const StageConfig& config, const StageLayers& layers);
};

/// The segments of each chunk of `layers`: all have as many blocks.
std::vector<Segment> segments_of(const StageConfig& config, const StageLayers& layers);

/// The memory that `layers` will take with `slots` micro-batches under way.
StageMemory plan_memory(const StageConfig& config, const StageLayers& layers, int slots);

}  // namespace trireme::model
