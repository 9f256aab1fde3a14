#include "report/tensorboard.hpp"

namespace trireme::report {
namespace {

/// A training curve and where an event holds it.
struct TrainCurve {
  const char* tag;
  double (*value)(const TrainEvent&);
};

double real(std::int64_t value) { return static_cast<double>(value); }

constexpr TrainCurve kTrainCurves[] = {
    {"train/loss", [](const TrainEvent& e) { return e.loss; }},
    {"train/grad_norm", [](const TrainEvent& e) { return e.grad_norm; }},
    {"train/learning_rate", [](const TrainEvent& e) { return e.learning_rate; }},
    {"train/loss_scale", [](const TrainEvent& e) { return e.loss_scale; }},
    {"train/global_batch", [](const TrainEvent& e) { return real(e.global_batch); }},
    {"train/iteration_ms", [](const TrainEvent& e) { return e.ms; }},
    {"train/tokens_per_second", [](const TrainEvent& e) { return e.tokens_per_second; }},
    {"train/model_tflops_per_rank", [](const TrainEvent& e) { return e.model_tflops_per_rank; }},
    {"train/consumed_samples", [](const TrainEvent& e) { return real(e.consumed_samples); }},
    {"train/consumed_tokens", [](const TrainEvent& e) { return real(e.consumed_tokens); }},
    {"train/skipped", [](const TrainEvent& e) { return real(e.skipped); }},
    {"train/nan", [](const TrainEvent& e) { return real(e.nan); }},
};

}  // namespace

void add_scalars(EventFile& file, const TrainEvent& event, double time) {
  for (const TrainCurve& curve : kTrainCurves)
    file.scalar(curve.tag, event.iteration, curve.value(event), time);
  if (event.mfu) file.scalar("train/mfu", event.iteration, *event.mfu, time);
}

void add_scalars(EventFile& file, const EvalEvent& event, double time) {
  file.scalar(event.split + "/loss", event.iteration, event.loss, time);
  file.scalar(event.split + "/perplexity", event.iteration, perplexity(event.loss), time);
}

void add_scalars(EventFile& file, const MemoryEvent& event, double time) {
  file.scalar("memory/resident_bytes", event.iteration, real(event.resident_bytes), time);
  file.scalar("memory/peak_bytes", event.iteration, real(event.peak_bytes), time);
  if (event.gpu_bytes > 0)
    file.scalar("memory/gpu_bytes", event.iteration, real(event.gpu_bytes), time);
}

void add_scalars(EventFile& file, const CheckpointEvent& event, double time) {
  file.scalar("checkpoint/seconds", event.iteration, event.seconds, time);
}

}  // namespace trireme::report
