// The curves that TensorBoard shows: the same events as metrics.jsonl under the tags of the
// `trireme` dialect. The x axis of all of them is the iteration.
//
//   train/loss, train/grad_norm, train/learning_rate, train/loss_scale, train/global_batch,
//   train/iteration_ms, train/tokens_per_second, train/model_tflops_per_rank, train/mfu,
//   train/consumed_samples, train/consumed_tokens, train/skipped, train/nan   (TrainEvent)
//   <split>/loss, <split>/perplexity                                           (EvalEvent)
//   memory/resident_bytes, memory/peak_bytes, memory/gpu_bytes (MemoryEvent) checkpoint/seconds
//   (CheckpointEvent)
#pragma once

#include "report/event_file.hpp"
#include "report/metrics.hpp"

namespace trireme::report {

/// Adds an event's scalars to `file` at time `time`. Throws IoError.
void add_scalars(EventFile& file, const TrainEvent& event, double time);
void add_scalars(EventFile& file, const EvalEvent& event, double time);
void add_scalars(EventFile& file, const MemoryEvent& event, double time);
void add_scalars(EventFile& file, const CheckpointEvent& event, double time);

}  // namespace trireme::report
