#include "report/reporter.hpp"

#include "core/clock.hpp"

namespace trireme::report {
namespace {

OutputFile::Mode mode_of(const ReporterOptions& options) {
  return options.restart ? OutputFile::Mode::resume : OutputFile::Mode::fresh;
}

OutputFile open_metrics(const ReporterOptions& options) {
  const std::filesystem::path path = options.folder / "metrics.jsonl";
  if (options.restart) truncate_metrics_after(path, *options.restart);
  return OutputFile(path, mode_of(options));
}

}  // namespace

Reporter::Reporter(const ReporterOptions& options)
    : run_(options.run),
      metrics_(open_metrics(options)),
      console_(options.folder / "console.log", mode_of(options)),
      curves_(make_curves(options.dialect)) {
  if (!options.tensorboard) return;
  tensorboard_.emplace(options.folder / "tensorboard", options.flush_every);
  // TensorBoard drops the points of all tags from such a record's step on, those over samples and
  // tokens too; and some of its readers drop nothing at the first one that they meet.
  const bool over_iterations_alone = options.dialect == deck::TensorboardDialect::trireme;
  if (!options.restart)
    tensorboard_->begin_at(0, unix_time());
  else if (over_iterations_alone)
    tensorboard_->begin_at(*options.restart + 1, unix_time());
}

template <typename Event>
void Reporter::emit(const Event& event, const std::string& text) {
  const double now = unix_time();
  metrics_.line(json_line(event, now));
  console_.print(text);
  if constexpr (requires { curves_->of(event); })
    if (tensorboard_)
      for (const auto& [tag, x, y] : curves_->of(event)) tensorboard_->scalar(tag, x, y, now);
}

void Reporter::on(const StartEvent& event) { emit(event, start_lines(event)); }

void Reporter::on(const TrainEvent& event) { emit(event, training_line(event, run_)); }

void Reporter::on(const SkipEvent& event) { emit(event, skip_line(event)); }

void Reporter::on(const EvalEvent& event) { emit(event, validation_lines(event)); }

void Reporter::on(const TimersEvent& event) { emit(event, timers_lines(event)); }

void Reporter::on(const CheckpointEvent& event) { emit(event, checkpoint_line(event)); }

void Reporter::on(const MemoryEvent& event) { emit(event, memory_lines(event)); }

void Reporter::on(const GpuEvent& event) { emit(event, gpu_line(event)); }

void Reporter::on(const WarningEvent& event) { emit(event, warning_line(event)); }

void Reporter::on(const StopEvent& event) {
  emit(event, stop_line(event));
  if (tensorboard_) tensorboard_->flush();
}

}  // namespace trireme::report
