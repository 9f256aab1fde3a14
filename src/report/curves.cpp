#include "report/run_files.hpp"

#include <fmt/format.h>

#include <optional>

#include "core/error.hpp"

namespace trireme::report {
namespace {

double real(std::int64_t value) { return static_cast<double>(value); }

/// A value of a TrainEvent; empty when absent.
using TrainValue = std::optional<double> (*)(const TrainEvent&);

/// A value under the tag of a dialect.
struct TrainCurve {
  const char* tag;
  TrainValue value;
};

namespace train_values {

std::optional<double> loss(const TrainEvent& e) { return e.loss; }
std::optional<double> sentence_loss(const TrainEvent& e) { return e.sentence_loss; }
std::optional<double> grad_norm(const TrainEvent& e) { return e.grad_norm; }
std::optional<double> learning_rate(const TrainEvent& e) { return e.learning_rate; }
std::optional<double> loss_scale(const TrainEvent& e) { return e.loss_scale; }
std::optional<double> global_batch(const TrainEvent& e) { return real(e.global_batch); }
std::optional<double> iteration_ms(const TrainEvent& e) { return e.ms; }
std::optional<double> iteration_seconds(const TrainEvent& e) { return e.ms / 1e3; }
std::optional<double> parameter_norm(const TrainEvent& e) { return e.parameter_norm; }
std::optional<double> largest_logit(const TrainEvent& e) { return e.largest_logit; }
std::optional<double> gradient_zeros(const TrainEvent& e) {
  return e.gradient_zeros ? std::optional(real(*e.gradient_zeros)) : std::nullopt;
}

}  // namespace train_values

// ---------------------------------------------------------------------------- this program

constexpr TrainCurve kTriremeCurves[] = {
    {"train/loss", train_values::loss},
    {"train/sentence_loss", train_values::sentence_loss},
    {"train/grad_norm", train_values::grad_norm},
    {"train/parameter_norm", train_values::parameter_norm},
    {"train/gradient_zeros", train_values::gradient_zeros},
    {"train/largest_logit", train_values::largest_logit},
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

/// Adds the norms of layers, embeddings and head: "norms/layers/3/update".
void add_layers(std::vector<Point>& points, const char* of, std::int64_t iteration,
                const std::vector<double>& norms) {
  for (std::size_t i = 0; i < norms.size(); ++i) {
    const std::string part = i + 2 == norms.size()   ? "embedding"
                             : i + 1 == norms.size() ? "head"
                                                     : fmt::format("layers/{}", i);
    points.push_back({fmt::format("norms/{}/{}", part, of), iteration, norms[i]});
  }
}

class TriremeCurves final : public Curves {
 public:
  std::vector<Point> of(const TrainEvent& event) override {
    std::vector<Point> points;
    for (const auto& [tag, value] : kTriremeCurves)
      if (const auto y = value(event)) points.push_back({tag, event.iteration, *y});
    if (event.layer_norms) {
      add_layers(points, "gradient", event.iteration, event.layer_norms->gradient);
      add_layers(points, "update", event.iteration, event.layer_norms->update);
      add_layers(points, "parameters", event.iteration, event.layer_norms->parameters);
    }
    return points;
  }

  std::vector<Point> of(const EvalEvent& event) override {
    std::vector<Point> points{
        {event.split + "/loss", event.iteration, event.loss},
        {event.split + "/perplexity", event.iteration, perplexity(event.loss)}};
    if (event.sentence_loss)
      points.push_back({event.split + "/sentence_loss", event.iteration, *event.sentence_loss});
    if (event.sentence_accuracy)
      points.push_back(
          {event.split + "/sentence_accuracy", event.iteration, *event.sentence_accuracy});
    return points;
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

// ---------------------------------------------------------------------------- Megatron-LM

constexpr TrainCurve kMegatronCurves[] = {
    {"learning-rate", train_values::learning_rate},
    {"batch-size", train_values::global_batch},
    {"lm loss", train_values::loss},
    {"sop loss", train_values::sentence_loss},
    {"loss-scale", train_values::loss_scale},
    {"grad-norm", train_values::grad_norm},
    {"num-zeros", train_values::gradient_zeros},
    {"params-norm", train_values::parameter_norm},
};

/// Adds a point by iterations and one by samples.
template <typename Event>
void add_both(std::vector<Point>& points, const std::string& tag, const Event& event, double y) {
  points.push_back({tag, event.iteration, y});
  points.push_back({tag + " vs samples", event.consumed_samples, y});
}

class MegatronCurves final : public Curves {
 public:
  std::vector<Point> of(const StartEvent& event) override {
    ranks_ = event.layout.ranks();
    return {};
  }

  std::vector<Point> of(const TrainEvent& event) override {
    std::vector<Point> points;
    for (const auto& [tag, value] : kMegatronCurves)
      if (const auto y = value(event)) add_both(points, tag, event, *y);
    add_both(points, "world-size", event, ranks_);
    points.push_back({"iteration-time", event.iteration, event.ms / 1e3});
    return points;
  }

  std::vector<Point> of(const EvalEvent& event) override {
    std::vector<Point> points;
    if (event.split != "valid") return points;
    add_both(points, "lm loss validation", event, event.loss);
    add_both(points, "lm loss validation ppl", event, perplexity(event.loss));
    if (!event.sentence_loss) return points;
    add_both(points, "sop loss validation", event, *event.sentence_loss);
    add_both(points, "sop loss validation ppl", event, perplexity(*event.sentence_loss));
    return points;
  }

  std::vector<Point> of(const TimersEvent& event) override {
    std::vector<Point> points;
    for (const TimerValue& timer : event.timers)
      points.push_back({timer.name + "-time", event.iteration, timer.max_ms / 1e3});
    return points;
  }

 private:
  int ranks_ = 1;
};

// ---------------------------------------------------------------------------- BigScience

/// The x axes of a curve other than iterations; each axis is a separate curve.
enum class Axes { samples, samples_and_tokens, all };

struct CurveOverAxes {
  const char* tag;
  TrainValue value;
  Axes axes;
};

constexpr CurveOverAxes kBigscienceCurves[] = {
    {"learning-rate/learning-rate", train_values::learning_rate, Axes::samples_and_tokens},
    {"batch-size/batch-size", train_values::global_batch, Axes::samples},
    {"lm-loss-training/lm loss", train_values::loss, Axes::all},
    {"lm-loss-training/sop loss", train_values::sentence_loss, Axes::all},
    {"loss-scale/loss-scale", train_values::loss_scale, Axes::samples_and_tokens},
    {"grad-norm/grad-norm", train_values::grad_norm, Axes::samples_and_tokens},
    {"num-zeros/num-zeros", train_values::gradient_zeros, Axes::samples_and_tokens},
    {"params-norm/params-norm", train_values::parameter_norm, Axes::samples_and_tokens},
    {"iteration-time/iteration-time", train_values::iteration_seconds, Axes::samples_and_tokens},
};

class BigscienceCurves final : public Curves {
 public:
  std::vector<Point> of(const StartEvent& event) override {
    start_ = event;
    const std::string tag = "iteration-time/world_size";
    return {{tag, event.iteration, static_cast<double>(event.layout.ranks())},
            {tag, event.iteration + 1, 0.0}};
  }

  std::vector<Point> of(const TrainEvent& event) override {
    const std::int64_t step = event.iteration;
    std::vector<Point> points{
        {"steps-vs-samples/y=steps,x=samples", event.consumed_samples, real(step)},
        {"steps-vs-samples/y=samples,x=steps", step, real(event.consumed_samples)},
        {"steps-vs-tokens/y=steps,x=tokens", event.consumed_tokens, real(step)},
        {"steps-vs-tokens/y=tokens,x=steps", step, real(event.consumed_tokens)}};
    for (const auto& [tag, value, axes] : kBigscienceCurves)
      if (const auto y = value(event)) add(points, tag, event, *y, axes);
    add_speeds(points, event);
    return points;
  }

  std::vector<Point> of(const EvalEvent& event) override {
    const std::string group = event.split == "valid" ? "" : "/" + event.split;
    std::vector<Point> points;
    const auto add_loss = [&](const char* name, double loss) {
      const std::string tag = fmt::format("lm-loss-validation{}/{} validation", group, name);
      add(points, tag, event, loss, Axes::all);
      add(points, tag + " ppl", event, perplexity(loss), Axes::all);
    };
    add_loss("lm loss", event.loss);
    if (event.sentence_loss) add_loss("sop loss", *event.sentence_loss);
    return points;
  }

  std::vector<Point> of(const TimersEvent& event) override {
    std::vector<Point> points;
    for (const TimerValue& timer : event.timers)
      points.push_back({"time/" + timer.name + "-time", event.iteration, timer.max_ms / 1e3});
    return points;
  }

 private:
  /// Adds a point by iterations and one for each of the other axes.
  template <typename Event>
  void add(std::vector<Point>& points, const std::string& tag, const Event& event, double y,
           Axes axes) const {
    points.push_back({tag, event.iteration, y});
    points.push_back({tag + " vs samples", event.consumed_samples, y});
    if (axes == Axes::samples) return;
    points.push_back({tag + " vs tokens", event.consumed_tokens, y});
    if (axes == Axes::samples_and_tokens) return;
    const double gigaflos =
        6.0 * real(event.consumed_tokens) * real(start_.model.parameters_without_embeddings) / 1e9;
    points.push_back(
        {tag + " vs gigaflos (without embeddings)", static_cast<std::int64_t>(gigaflos), y});
  }

  void add_speeds(std::vector<Point>& points, const TrainEvent& event) const {
    const auto speed = [&](const std::string& name, double value) {
      points.push_back({"iteration-time/" + name, event.iteration, value});
    };
    // As a mean over the interval, in which a ramp-up has batches of several sizes.
    const double samples_per_second = event.tokens_per_second / real(start_.model.sequence);
    const double replicas = start_.layout.data;
    speed("samples per second", samples_per_second);
    speed("samples per second per replica", samples_per_second / replicas);
    speed("tokens per second", event.tokens_per_second);
    speed("tokens per second per replica", event.tokens_per_second / replicas);
    speed("TFLOPs per gpu (estimated)",
          samples_per_second * flops_per_sample() / start_.layout.ranks() / 1e12);
  }

  /// By BigScience's estimate.
  double flops_per_sample() const {
    const ModelInfo& model = start_.model;
    const double l = real(model.layers), h = real(model.hidden), s = real(model.sequence);
    const double passes = model.recomputes ? 4 : 3;
    return 24 * passes * s * l * h * h * (1 + s / (6 * h) + real(model.vocab) / (16 * l * h));
  }

  StartEvent start_{.model = {.layers = 1, .hidden = 1}};
};

}  // namespace

std::vector<Point> Curves::of(const TaskEvent& event) const {
  std::vector<Point> points;
  for (const auto& [name, value] : event.metrics)
    points.push_back({"tasks/" + event.task + "/" + name, event.iteration, value});
  return points;
}

std::unique_ptr<Curves> trireme_curves() { return std::make_unique<TriremeCurves>(); }

std::unique_ptr<Curves> megatron_curves() { return std::make_unique<MegatronCurves>(); }

std::unique_ptr<Curves> bigscience_curves() { return std::make_unique<BigscienceCurves>(); }

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
