#include "report/curves/curves.hpp"
#include "report/curves/train_values.hpp"

namespace trireme::report {
namespace {

constexpr TrainCurve kTrainCurves[] = {
    {"learning-rate", train_values::learning_rate},
    {"batch-size", train_values::global_batch},
    {"lm loss", train_values::loss},
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
    for (const auto& [tag, value] : kTrainCurves)
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

}  // namespace

std::unique_ptr<Curves> megatron_curves() { return std::make_unique<MegatronCurves>(); }

}  // namespace trireme::report
