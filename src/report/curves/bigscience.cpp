#include "report/curves/curves.hpp"
#include "report/curves/train_values.hpp"

namespace trireme::report {
namespace {

/// The x axes that a curve is drawn over besides the iterations, each in a curve of its own.
enum class Axes { samples, samples_and_tokens, all };

struct CurveOverAxes {
  const char* tag;
  TrainValue value;
  Axes axes;
};

constexpr CurveOverAxes kTrainCurves[] = {
    {"learning-rate/learning-rate", train_values::learning_rate, Axes::samples_and_tokens},
    {"batch-size/batch-size", train_values::global_batch, Axes::samples},
    {"lm-loss-training/lm loss", train_values::loss, Axes::all},
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
    for (const auto& [tag, value, axes] : kTrainCurves)
      if (const auto y = value(event)) add(points, tag, event, *y, axes);
    add_speeds(points, event);
    return points;
  }

  std::vector<Point> of(const EvalEvent& event) override {
    const std::string group = event.split == "valid" ? "" : "/" + event.split;
    const std::string tag = "lm-loss-validation" + group + "/lm loss validation";
    std::vector<Point> points;
    add(points, tag, event, event.loss, Axes::all);
    add(points, tag + " ppl", event, perplexity(event.loss), Axes::all);
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
    const ModelFacts& model = start_.model;
    const double l = real(model.layers), h = real(model.hidden), s = real(model.sequence);
    const double passes = model.recomputes ? 4 : 3;
    return 24 * passes * s * l * h * h * (1 + s / (6 * h) + real(model.vocab) / (16 * l * h));
  }

  StartEvent start_{.model = {.layers = 1, .hidden = 1}};
};

}  // namespace

std::unique_ptr<Curves> bigscience_curves() { return std::make_unique<BigscienceCurves>(); }

}  // namespace trireme::report
