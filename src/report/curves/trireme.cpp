#include "core/error.hpp"
#include "report/curves/curves.hpp"
#include "report/curves/train_values.hpp"

namespace trireme::report {
namespace {

constexpr TrainCurve kTrainCurves[] = {
    {"train/loss", train_values::loss},
    {"train/grad_norm", train_values::grad_norm},
    {"train/parameter_norm", train_values::parameter_norm},
    {"train/gradient_zeros", train_values::gradient_zeros},
    {"train/learning_rate", train_values::learning_rate},
    {"train/loss_scale", train_values::loss_scale},
    {"train/global_batch", train_values::global_batch},
    {"train/iteration_ms", train_values::iteration_ms},
    {"train/tokens_per_second",
     [](const TrainEvent& e) { return std::optional(e.tokens_per_second); }},
    {"train/model_tflops_per_rank",
     [](const TrainEvent& e) { return std::optional(e.model_tflops_per_rank); }},
    {"train/mfu", [](const TrainEvent& e) { return e.mfu; }},
    {"train/consumed_samples",
     [](const TrainEvent& e) { return std::optional(real(e.consumed_samples)); }},
    {"train/consumed_tokens",
     [](const TrainEvent& e) { return std::optional(real(e.consumed_tokens)); }},
    {"train/skipped", [](const TrainEvent& e) { return std::optional(real(e.skipped)); }},
    {"train/nan", [](const TrainEvent& e) { return std::optional(real(e.nan)); }},
};

class TriremeCurves final : public Curves {
 public:
  std::vector<Point> of(const TrainEvent& event) override {
    std::vector<Point> points;
    for (const auto& [tag, value] : kTrainCurves)
      if (const auto y = value(event)) points.push_back({tag, event.iteration, *y});
    return points;
  }

  std::vector<Point> of(const EvalEvent& event) override {
    return {{event.split + "/loss", event.iteration, event.loss},
            {event.split + "/perplexity", event.iteration, perplexity(event.loss)}};
  }

  std::vector<Point> of(const TimersEvent& event) override {
    std::vector<Point> points;
    for (const TimerValue& timer : event.timers)
      points.push_back({"timers/" + timer.name + "_ms", event.iteration, timer.max_ms});
    return points;
  }

  std::vector<Point> of(const MemoryEvent& event) override {
    std::vector<Point> points{
        {"memory/resident_bytes", event.iteration, real(event.resident_bytes)},
        {"memory/peak_bytes", event.iteration, real(event.peak_bytes)}};
    if (event.gpu_bytes > 0)
      points.push_back({"memory/gpu_bytes", event.iteration, real(event.gpu_bytes)});
    return points;
  }

  std::vector<Point> of(const CheckpointEvent& event) override {
    return {{"checkpoint/seconds", event.iteration, event.seconds}};
  }
};

}  // namespace

std::unique_ptr<Curves> trireme_curves() { return std::make_unique<TriremeCurves>(); }

std::unique_ptr<Curves> make_curves(deck::TensorboardDialect dialect) {
  switch (dialect) {
    case deck::TensorboardDialect::trireme:
      return trireme_curves();
    case deck::TensorboardDialect::megatron:
      return megatron_curves();
    case deck::TensorboardDialect::bigscience:
      return bigscience_curves();
  }
  throw InternalError("unknown log.tensorboard.dialect");
}

}  // namespace trireme::report
